#include <algorithm>
#include <cmath>

#include "spillway/kernels/elements_scalar.h"
#include "spillway/kernels/project.h"
#include "spillway/kernels/random.h"
#include "spillway/kernels/weights_scalar.h"

namespace spillway::kernels::scalar {
namespace {

/// Column `column` of R, of one token.
template <class T>
float sum_of(const Projector& r, const T* in, std::size_t column) {
  float sum = 0;
  if (!r.is_scattered()) {
    const auto group = column / r.nonzeros;
    for (auto i = r.first(group); i < r.first(group + 1); ++i) {
      sum = std::fma(load(in[i]), r.values[column % r.nonzeros * r.stride() + i], sum);
    }
    return sum;
  }
  for (std::size_t i = 0; i < r.rows; ++i) {
    for (auto at = i; at < r.nonzeros * r.stride(); at += r.stride()) {
      if (r.places[at] == column) sum = std::fma(load(in[i]), r.values[at], sum);
    }
  }
  return sum;
}

template <class T>
void compress_to(const Projector& r, const T* in, std::size_t in_stride, std::size_t tokens, T* out,
                 std::size_t out_stride) {
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t c = 0; c < r.columns; ++c) store(sum_of(r, in + t * in_stride, c), out[c * out_stride + t]);
  }
}

/// Element [row, column] of (P * delta) * Q^T.
float change_of_scattered(const Expansion& e, std::size_t row, std::size_t column) {
  const auto &p = e.p, &q = e.q;
  float sum = 0;
  for (auto right = column; right < q.nonzeros * q.stride(); right += q.stride()) {
    float spread = 0;
    for (auto left = row; left < p.nonzeros * p.stride(); left += p.stride()) {
      spread = std::fma(p.values[left], e.delta[p.places[left] * p.columns + q.places[right]], spread);
    }
    sum = std::fma(q.values[right], spread, sum);
  }
  return sum;
}

/// Element [row, column] of P * (delta * Q^T).
float change_of(const Expansion& e, std::size_t row, std::size_t column) {
  const auto &p = e.p, &q = e.q;
  if (p.is_scattered()) return change_of_scattered(e, row, column);
  float sum = 0;
  for (std::size_t s = 0; s < p.nonzeros; ++s) {
    const float* const line = e.delta + (p.group_of(row) * p.nonzeros + s) * p.columns;
    float spread = 0;
    for (std::size_t t = 0; t < q.nonzeros; ++t) {
      spread = std::fma(q.values[t * q.stride() + column], line[q.group_of(column) * q.nonzeros + t], spread);
    }
    sum = std::fma(p.values[s * p.stride() + row], spread, sum);
  }
  return sum;
}

}  // namespace

void compress(const Projector& projector, const std::uint16_t* in, std::size_t in_stride, std::size_t tokens,
              std::uint16_t* out, std::size_t out_stride) {
  compress_to(projector, in, in_stride, tokens, out, out_stride);
}
void compress(const Projector& projector, const float* in, std::size_t in_stride, std::size_t tokens, float* out,
              std::size_t out_stride) {
  compress_to(projector, in, in_stride, tokens, out, out_stride);
}
void compress(const Projector& projector, const Fp16* in, std::size_t in_stride, std::size_t tokens, Fp16* out,
              std::size_t out_stride) {
  compress_to(projector, in, in_stride, tokens, out, out_stride);
}

void apply(Weights weights, const Expansion& expansion, float keep, const UpdateSpan& span, std::size_t first) {
  const bool rounds = weights == Weights::bf16 && span.remainder == nullptr;
  const RandomKey key(expansion.seed, expansion.step);
  for (std::size_t i = 0; i < span.n; ++i) {
    const auto columns = expansion.q.rows;
    const float change = change_of(expansion, (first + i) / columns, (first + i) % columns);
    if (rounds) {
      const float next = std::fma(kernels::widen(get<std::uint16_t>(span.weight, i)), keep, change);
      put(span.weight, i, round_bf16_randomly(next, random16(key, rounding_index(span.index) + i)));
    } else {
      put_master(weights, span, i, quiet(std::fma(master(weights, span, i), keep, change)));
    }
  }
}

}  // namespace spillway::kernels::scalar

namespace spillway::kernels {

void number_columns(const Projector& projector, std::uint32_t* out) noexcept {
  const auto& r = projector;
  const auto each = [&](const auto& body) {
    for (std::size_t i = 0; i < r.rows; ++i) {
      for (auto at = i; at < r.nonzeros * r.stride(); at += r.stride()) body(r.places[at], at);
    }
  };
  std::fill_n(out, r.columns + 1, 0U);
  each([&](std::uint32_t column, std::size_t) { ++out[column + 1]; });
  for (std::size_t c = 0; c < r.columns; ++c) out[c + 1] += out[c];
  // The offset of a column moves on with each value, until it is that of the next column.
  auto* const numbers = out + r.columns + 1;
  each([&](std::uint32_t column, std::size_t at) { numbers[out[column]++] = static_cast<std::uint32_t>(at); });
  std::copy_backward(out, out + r.columns, out + r.columns + 1);
  out[0] = 0;
}

}  // namespace spillway::kernels
