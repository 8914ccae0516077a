#include "spillway/subspace/transfer.h"

#include <algorithm>
#include <vector>

#include "spillway/subspace/scattered.h"

namespace spillway::subspace {
namespace {

/// Blocks of after^T before: [groups][r][r].
std::vector<float> blocks(const Projector& before, const Projector& after) {
  const auto view = after.view();
  const auto r = after.nonzeros();
  std::vector<float> out(view.groups() * r * r);
  for (std::size_t i = 0; i < after.rows(); ++i) {
    float* const block = out.data() + view.group_of(i) * r * r;
    for (std::size_t s = 0; s < r; ++s) {
      for (std::size_t t = 0; t < r; ++t) block[s * r + t] += after.value(i, s) * before.value(i, t);
    }
  }
  return out;
}

/// matrix = A matrix B^T, of blocks; [d, d].
void turn(std::span<const float> a, std::span<const float> b, std::size_t r, std::size_t d, std::span<float> matrix) {
  std::vector<float> rows(r * d), line(d);
  for (std::size_t g = 0; g < d / r; ++g) {
    std::ranges::fill(rows, 0.0F);
    for (std::size_t s = 0; s < r; ++s) {
      for (std::size_t t = 0; t < r; ++t) {
        const float value = a[(g * r + s) * r + t];
        for (std::size_t k = 0; k < d; ++k) rows[s * d + k] += value * matrix[(g * r + t) * d + k];
      }
    }
    for (std::size_t s = 0; s < r; ++s) {
      std::ranges::fill(line, 0.0F);
      for (std::size_t k = 0; k < d; ++k) {
        for (std::size_t t = 0; t < r; ++t) line[k] += b[k * r + t] * rows[s * d + k / r * r + t];
      }
      std::ranges::copy(line, matrix.begin() + static_cast<std::ptrdiff_t>((g * r + s) * d));
    }
  }
}

/// R'ᵀ R of scattered projectors, [d, d].
std::vector<float> transfer(const Projector& before, const Projector& after) {
  const auto d = after.columns(), r = after.nonzeros();
  std::vector<float> out(d * d);
  for (std::size_t i = 0; i < after.rows(); ++i) {
    for (std::size_t s = 0; s < r; ++s) {
      for (std::size_t t = 0; t < r; ++t) {
        out[after.place(i, s) * d + before.place(i, t)] += after.value(i, s) * before.value(i, t);
      }
    }
  }
  return out;
}

/// (A B)ᵀ, all of [d, d]; most elements of A are 0.
std::vector<float> multiply(std::span<const float> a, std::span<const float> b, std::size_t d) {
  std::vector<float> out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      const float factor = a[i * d + k];
      if (factor == 0) continue;
      for (std::size_t j = 0; j < d; ++j) out[i * d + j] += factor * b[k * d + j];
    }
  }
  return subspace::turn(out, d, d);
}

/// moment = A moment Bᵀ, of scattered projectors.
void carry_by(std::span<const float> a, std::span<const float> b, std::size_t d, std::span<float> moment) {
  std::ranges::copy(multiply(b, multiply(a, moment, d), d), moment.begin());
}

void square(std::span<float> values) {
  for (auto& value : values) value *= value;
}

/// Sum of each row of a block.
std::vector<float> row_sums(std::span<const float> squares, std::size_t r) {
  std::vector<float> out(squares.size() / r);
  for (std::size_t i = 0; i < squares.size(); ++i) out[i / r] += squares[i];
  return out;
}

}  // namespace

void carry_first(const Projectors& before, const Projectors& after, std::span<float> moment) {
  if (after.p.is_scattered()) {
    return carry_by(transfer(before.p, after.p), transfer(before.q, after.q), after.p.columns(), moment);
  }
  turn(blocks(before.p, after.p), blocks(before.q, after.q), after.p.nonzeros(), after.p.columns(), moment);
}

void carry_second(const Projectors& before, const Projectors& after, std::span<float> moment, bool fill) {
  const auto d = after.p.columns(), r = after.p.nonzeros();
  const bool scattered = after.p.is_scattered();
  auto a = scattered ? transfer(before.p, after.p) : blocks(before.p, after.p);
  auto b = scattered ? transfer(before.q, after.q) : blocks(before.q, after.q);
  square(a);
  square(b);
  if (scattered) return carry_by(a, b, d, moment);
  double sum = 0;
  for (const float value : moment) sum += value;
  const auto mean = static_cast<float>(sum / static_cast<double>(moment.size()));
  turn(a, b, r, d, moment);
  if (!fill) return;
  const auto rows = row_sums(a, r), columns = row_sums(b, r);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) moment[i * d + k] += std::max(0.0F, 1 - rows[i] * columns[k]) * mean;
  }
}

}  // namespace spillway::subspace
