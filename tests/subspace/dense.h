// Dense matrices in double: what the subspace is compared with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/kernels/split.h"
#include "spillway/kernels/update.h"
#include "spillway/subspace/refit.h"

namespace spillway::subspace::testing {

struct Dense {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  Dense(std::size_t m, std::size_t n) : rows(m), columns(n), values(m * n) {}
  Dense(std::size_t m, std::size_t n, std::span<const float> from)
      : rows(m), columns(n), values(from.begin(), from.end()) {}
  explicit Dense(const Projector& r) : Dense(r.rows(), r.columns()) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t s = 0; s < r.nonzeros(); ++s) at(i, r.place(i, s)) = r.value(i, s);
    }
  }
  [[nodiscard]] double& at(std::size_t i, std::size_t k) { return values[i * columns + k]; }
  [[nodiscard]] double at(std::size_t i, std::size_t k) const { return values[i * columns + k]; }

  [[nodiscard]] Dense turned() const {
    Dense out(columns, rows);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < columns; ++k) out.at(k, i) = at(i, k);
    }
    return out;
  }
  [[nodiscard]] double norm() const {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }
};

inline Dense operator*(const Dense& a, const Dense& b) {
  Dense out(a.rows, b.columns);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.columns; ++k) {
      for (std::size_t j = 0; j < b.columns; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return out;
}

inline Dense operator-(Dense a, const Dense& b) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] -= b.values[i];
  return a;
}

/// |P P^T G Q Q^T - G| / |G|.
inline double error_of(const Projectors& projectors, const Dense& gradient) {
  const Dense p(projectors.p), q(projectors.q);
  return (p * (p.turned() * gradient * q) * q.turned() - gradient).norm() / gradient.norm();
}

/// Normal numbers, the same everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double operator()() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  double uniform() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }
  std::uint64_t state_;
};

inline std::vector<float> white(std::size_t n, std::uint64_t seed) {
  Numbers numbers(seed);
  std::vector<float> out(n);
  for (auto& value : out) value = static_cast<float>(numbers());
  return out;
}

/// A gradient of `rank` strong directions in noise, as real ones are.
inline std::vector<float> gradient_like(std::size_t m, std::size_t n, std::size_t rank, std::uint64_t seed) {
  auto out = white(m * n, seed);
  for (auto& value : out) value *= 0.1F;
  for (std::size_t k = 0; k < rank; ++k) {
    const auto u = white(m, seed + 10 + k), v = white(n, seed + 90 + k);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += u[i] * v[j] / static_cast<float>(k + 1);
    }
  }
  return out;
}

/// By element.
inline Dense squared(Dense a) {
  for (auto& value : a.values) value *= value;
  return a;
}

/// A weight as bf16 and remainder.
struct Weight {
  std::vector<std::uint16_t> high, low;

  explicit Weight(const std::vector<float>& values) : high(values.size()), low(values.size()) {
    kernels::split(values.data(), high.data(), low.data(), values.size());
  }
  [[nodiscard]] kernels::UpdateSpan span() {
    return {.weight = reinterpret_cast<std::byte*>(high.data()),
            .remainder = reinterpret_cast<std::byte*>(low.data()),
            .n = high.size()};
  }
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> out(high.size());
    kernels::join(high.data(), low.data(), out.data(), out.size());
    return out;
  }
};

}  // namespace spillway::subspace::testing
