// Eigenvectors of small symmetric matrices, the same bits everywhere.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace spillway::subspace {

/// The `count` leading eigenvectors of a symmetric matrix [n, n], row-major: [count][n], by falling eigenvalue (equal
/// ones in the order of their columns), orthonormal, each with its largest element positive. By cyclic Jacobi rotations
/// (Golub & Van Loan, Matrix Computations, 8.5), O(n^3) a sweep: for n up to a few hundred. `matrix` is overwritten;
/// its elements must be finite.
[[nodiscard]] std::vector<double> leading_eigenvectors(std::span<double> matrix, std::size_t n, std::size_t count);

}  // namespace spillway::subspace
