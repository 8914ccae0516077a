#include "spillway/subspace/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace spillway::subspace {
namespace {

/// Two are usual for an eigenvalue. Behind that many the vectors are orthonormal still, if not yet right.
constexpr std::size_t kMostSteps = 30;

/// In four sums, which need not wait for each other.
double dot(const double* a, const double* b, std::size_t n) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i] * b[i], s1 += a[i + 1] * b[i + 1], s2 += a[i + 2] * b[i + 2], s3 += a[i + 3] * b[i + 3];
  }
  for (; i < n; ++i) s0 += a[i] * b[i];
  return (s0 + s2) + (s1 + s3);
}

/// to += factor * from.
void add(double factor, const double* from, double* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// From x the vector u by which 1 - scale u uᵀ turns x into [along, 0, ..., 0]. Returns the scale; 0: x is that.
double make_reflection(std::span<double> x, double& along) {
  along = x[0];
  const double rest = dot(x.data() + 1, x.data() + 1, x.size() - 1);
  if (rest == 0) return 0;
  along = std::sqrt(x[0] * x[0] + rest) * (x[0] > 0 ? -1 : 1);
  x[0] -= along;
  return 2 / (x[0] * x[0] + rest);
}

/// The rotation that turns [x, z] into [length, 0].
struct Rotation {
  double c = 1, s = 0, length = 0;

  Rotation(double x, double z) : length(std::sqrt(x * x + z * z)) {
    if (length > 0) c = x / length, s = z / length;
  }
  void turn(double* a, double* b, std::size_t n) const {
    for (std::size_t i = 0; i < n; ++i) {
      const double ai = a[i], bi = b[i];
      a[i] = c * ai + s * bi;
      b[i] = c * bi - s * ai;
    }
  }
};

}  // namespace

std::span<const double> Eigenvectors::leading(std::span<double> matrix, std::size_t n, std::size_t count) {
  n_ = n;
  make_tridiagonal(matrix);
  make_diagonal();
  choose(count);
  for (std::size_t k = 0; k < count; ++k) turn_back(matrix, std::span(vectors_).subspan(k * n, n));
  return vectors_;
}

/// Reflections from both sides, from the first row on. What is left of the matrix stays whole, so that all loops run
/// along its rows.
void Eigenvectors::make_tridiagonal(std::span<double> matrix) {
  for (auto* each : {&diagonal_, &off_, &scale_, &image_}) each->assign(n_, 0);
  for (std::size_t k = 0; k < n_; ++k) {
    diagonal_[k] = matrix[k * n_ + k];
    const auto rest = n_ - k - 1;
    if (rest == 0) break;
    double* const u = matrix.data() + k * n_ + k + 1;
    const double scale = scale_[k] = make_reflection({u, rest}, off_[k]);
    if (scale == 0) continue;
    double *const inner = u + n_, *const w = image_.data();  // inner := inner - u wᵀ - w uᵀ
    std::fill_n(w, rest, 0.0);
    for (std::size_t i = 0; i < rest; ++i) add(scale * u[i], inner + i * n_, w, rest);
    add(-scale / 2 * dot(w, u, rest), u, w, rest);
    for (std::size_t i = 0; i < rest; ++i) {
      double* const row = inner + i * n_;
      const double ui = u[i], wi = w[i];
      for (std::size_t j = 0; j < rest; ++j) row[j] -= ui * w[j] + wi * u[j];
    }
  }
}

/// From the last row on: the part whose off-diagonal elements are not 0 takes steps until its last one is.
void Eigenvectors::make_diagonal() {
  turned_.assign(n_ * n_, 0);
  double size = 0;
  for (std::size_t i = 0; i < n_; ++i) {
    turned_[i * n_ + i] = 1;
    size = std::max({size, std::abs(diagonal_[i]), std::abs(off_[i])});
  }
  const double small = size * std::numeric_limits<double>::epsilon();
  std::size_t steps = 0;
  for (std::size_t last = n_ - 1; last > 0;) {
    if (std::abs(off_[last - 1]) <= small || steps > kMostSteps * n_) {
      --last;
      continue;
    }
    auto first = last - 1;
    while (first > 0 && std::abs(off_[first - 1]) > small) --first;
    step(first, last);
    ++steps;
  }
}

/// One QR step, as rotations of neighbours from `first` to `last` (Golub & Van Loan, algorithm 8.3.2).
void Eigenvectors::step(std::size_t first, std::size_t last) {
  const double half = (diagonal_[last - 1] - diagonal_[last]) / 2, corner = off_[last - 1];
  const double root = std::sqrt(half * half + corner * corner);
  const double shift = diagonal_[last] - corner * corner / (half + (half < 0 ? -root : root));
  double x = diagonal_[first] - shift, z = off_[first];
  for (auto k = first; k < last; ++k) {
    const Rotation by(x, z);
    if (k > first) off_[k - 1] = by.length;
    const double change = by.s * (diagonal_[k + 1] - diagonal_[k]) + 2 * by.c * off_[k];
    diagonal_[k] += by.s * change;
    diagonal_[k + 1] -= by.s * change;
    x = off_[k] = by.c * change - off_[k];
    z = by.s * off_[k + 1];
    if (k + 1 < last) off_[k + 1] *= by.c;
    by.turn(turned_.data() + k * n_, turned_.data() + (k + 1) * n_, n_);
  }
}

void Eigenvectors::choose(std::size_t count) {
  order_.resize(n_);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::stable_sort(order_, [&](auto a, auto b) { return diagonal_[a] > diagonal_[b]; });
  vectors_.resize(count * n_);
  for (std::size_t k = 0; k < count; ++k) {
    std::copy_n(turned_.data() + order_[k] * n_, n_, vectors_.data() + k * n_);
  }
}

void Eigenvectors::turn_back(std::span<const double> matrix, std::span<double> vector) const {
  for (auto k = n_ - 1; k-- > 0;) {
    if (scale_[k] == 0) continue;
    const double* const u = matrix.data() + k * n_ + k + 1;
    double* const part = vector.data() + k + 1;
    add(-scale_[k] * dot(u, part, n_ - k - 1), u, part, n_ - k - 1);
  }
  const auto largest = *std::ranges::max_element(vector, {}, [](double v) { return std::abs(v); });
  if (largest >= 0) return;
  for (double& v : vector) v = -v;
}

}  // namespace spillway::subspace
