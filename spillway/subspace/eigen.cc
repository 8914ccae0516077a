#include "spillway/subspace/eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace spillway::subspace {
namespace {

constexpr int kMostSweeps = 60;
/// Off-diagonal squares against all: 1e-12 of the norm, far below what fp32 keeps of a vector. Rounding leaves
/// around 1e-15.
constexpr double kSmall = 1e-24;

/// Rotates rows and columns p and q so that element [p, q] is 0; `vectors` collects the rotations by row.
void rotate(std::span<double> a, std::span<double> vectors, std::size_t n, std::size_t p, std::size_t q) {
  const double off = a[p * n + q];
  if (off == 0) return;
  const double theta = (a[q * n + q] - a[p * n + p]) / (2 * off);
  const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  for (std::size_t k = 0; k < n; ++k) {
    const double kp = a[k * n + p], kq = a[k * n + q];
    a[k * n + p] = c * kp - s * kq;
    a[k * n + q] = s * kp + c * kq;
  }
  for (std::size_t k = 0; k < n; ++k) {
    const double pk = a[p * n + k], qk = a[q * n + k];
    a[p * n + k] = c * pk - s * qk;
    a[q * n + k] = s * pk + c * qk;
    const double pv = vectors[p * n + k], qv = vectors[q * n + k];
    vectors[p * n + k] = c * pv - s * qv;
    vectors[q * n + k] = s * pv + c * qv;
  }
  a[p * n + q] = a[q * n + p] = 0;
}

bool is_diagonal(std::span<const double> a, std::size_t n) {
  double off = 0, all = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) (i == k ? all : off) += a[i * n + k] * a[i * n + k];
  }
  return off <= kSmall * (all + off);
}

}  // namespace

std::vector<double> leading_eigenvectors(std::span<double> matrix, std::size_t n, std::size_t count) {
  std::vector<double> vectors(n * n);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  for (int sweep = 0; sweep < kMostSweeps && !is_diagonal(matrix, n); ++sweep) {
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) rotate(matrix, vectors, n, p, q);
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return matrix[a * n + a] > matrix[b * n + b]; });
  std::vector<double> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto mine = std::span(vectors).subspan(order[i] * n, n);
    const auto largest = *std::ranges::max_element(mine, {}, [](double v) { return std::abs(v); });
    for (const double v : mine) out.push_back(largest < 0 ? -v : v);
  }
  return out;
}

}  // namespace spillway::subspace
