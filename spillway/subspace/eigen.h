// The leading eigenvectors of small symmetric matrices, the same bits everywhere.
//
// The matrix is made tridiagonal by reflections, that diagonal by QR steps with Wilkinson's shift, and only the vectors
// that are asked for go back through the reflections (Golub & Van Loan, Matrix Computations, 8.3): about 2 n^3 and
// 5 n^3 operations along rows, and 2 n^2 for each vector, where Jacobi's rotations take 9 n^3 a sweep, down columns,
// too.
//
// LAPACK does the same, but each of its libraries, and each instruction set, gives other bits, and runs would depend on
// which there is.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace spillway::subspace {

/// What one thread works with; grows to the largest that it was asked for and stays.
class Eigenvectors {
 public:
  /// The `count` <= n leading eigenvectors of a symmetric matrix [n, n], row-major: [count][n], by falling eigenvalue,
  /// orthonormal, each with its largest element positive; those of a diagonal matrix are the coordinates', equal ones
  /// in their order. Eigenvalues are told apart, and vectors are right, to what rounding leaves of the largest. Valid
  /// until the next call. `matrix` is overwritten; its elements must be finite, and so must be their squares.
  [[nodiscard]] std::span<const double> leading(std::span<double> matrix, std::size_t n, std::size_t count);

 private:
  void make_tridiagonal(std::span<double> matrix);
  void make_diagonal();
  void step(std::size_t first, std::size_t last);
  void choose(std::size_t count);
  void turn_back(std::span<const double> matrix, std::span<double> vector) const;

  std::size_t n_ = 0;
  std::vector<double> diagonal_, off_;  ///< off_[i]: element [i, i + 1]; the last is 0
  std::vector<double> scale_;  ///< of reflection k, 1 - scale u uᵀ: u is in row k of the matrix, from k + 1 on
  std::vector<double> image_;
  std::vector<double> turned_;      ///< [n][n]: eigenvectors of the tridiagonal matrix
  std::vector<std::size_t> order_;  ///< of them, by falling eigenvalue
  std::vector<double> vectors_;
};

}  // namespace spillway::subspace
