// All eigenvectors of a symmetric matrix by cyclic Jacobi rotations (Golub & Van Loan, Matrix Computations, 8.5): slow,
// obvious, and what subspace::Eigenvectors is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace spillway::subspace::testing {

struct Spectrum {
  std::vector<double> values;   ///< falling
  std::vector<double> vectors;  ///< [n][n], in their order
};

/// Makes element [p, q] of a [n, n] zero, by a rotation that `vectors` takes too.
inline void rotate(std::vector<double>& a, std::vector<double>& vectors, std::size_t n, std::size_t p, std::size_t q) {
  const double off = a[p * n + q];
  if (off == 0) return;
  const double theta = (a[q * n + q] - a[p * n + p]) / (2 * off);
  const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  const auto turn = [=](double& x, double& y) {
    const double before = x;
    x = c * before - s * y, y = s * before + c * y;
  };
  for (std::size_t k = 0; k < n; ++k) turn(a[k * n + p], a[k * n + q]);
  for (std::size_t k = 0; k < n; ++k) turn(a[p * n + k], a[q * n + k]), turn(vectors[p * n + k], vectors[q * n + k]);
}

inline Spectrum jacobi(std::vector<double> a, std::size_t n) {
  std::vector<double> vectors(n * n);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) rotate(a, vectors, n, p, q);
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto i, auto k) { return a[i * n + i] > a[k * n + k]; });
  Spectrum out;
  for (const auto i : order) {
    out.values.push_back(a[i * n + i]);
    out.vectors.insert(out.vectors.end(), vectors.begin() + static_cast<std::ptrdiff_t>(i * n),
                       vectors.begin() + static_cast<std::ptrdiff_t>((i + 1) * n));
  }
  return out;
}

}  // namespace spillway::subspace::testing
