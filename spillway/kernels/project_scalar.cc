#include <cmath>

#include "spillway/kernels/elements_scalar.h"
#include "spillway/kernels/project.h"
#include "spillway/kernels/random.h"
#include "spillway/kernels/weights_scalar.h"

namespace spillway::kernels::scalar {
namespace {

template <class T>
void compress_to(const Projector& r, const T* in, std::size_t in_stride, std::size_t tokens, T* out,
                 std::size_t out_stride) {
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t c = 0; c < r.columns; ++c) {
      const auto group = c / r.nonzeros;
      float sum = 0;
      for (auto i = r.first(group); i < r.first(group + 1); ++i) {
        sum = std::fma(load(in[t * in_stride + i]), r.values[c % r.nonzeros * r.stride() + i], sum);
      }
      store(sum, out[c * out_stride + t]);
    }
  }
}

/// Element [row, column] of P * delta * Q^T.
float change_of(const Expansion& e, std::size_t row, std::size_t column) {
  const auto &p = e.p, &q = e.q;
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
