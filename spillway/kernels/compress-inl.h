// Tokens through a sparse projector (kernels/project.h). Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_COMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_COMPRESS_INL_H_
#undef SPILLWAY_KERNELS_COMPRESS_INL_H_
#else
#define SPILLWAY_KERNELS_COMPRESS_INL_H_
#endif

#include <algorithm>

#include "spillway/kernels/elements-inl.h"
#include "spillway/kernels/project.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

using Wide = hn::CappedTag<float, kTokenTile>;

/// tile[i * kTokenTile + t] = in[t * stride + i] for `rows` i and kTokenTile t; those from `tokens` on are 0.
template <class T>
HWY_INLINE void turn(const T* in, std::size_t stride, std::size_t tokens, std::size_t rows, float* tile) {
  const hn::CappedTag<float, 1> one;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto low = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto high = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  for (; tokens == kTokenTile && i + 4 <= rows; i += 4) {
    for (std::size_t t = 0; t < kTokenTile; t += 4) {
      const T* at = in + t * stride + i;
      const auto a = load(d, at), b = load(d, at + stride), c = load(d, at + 2 * stride), e = load(d, at + 3 * stride);
      const auto ab = hn::InterleaveLower(d, a, b), AB = hn::InterleaveUpper(d, a, b);
      const auto ce = hn::InterleaveLower(d, c, e), CE = hn::InterleaveUpper(d, c, e);
      float* to = tile + i * kTokenTile + t;
      hn::StoreU(low(ab, ce), d, to);
      hn::StoreU(high(ab, ce), d, to + kTokenTile);
      hn::StoreU(low(AB, CE), d, to + 2 * kTokenTile);
      hn::StoreU(high(AB, CE), d, to + 3 * kTokenTile);
    }
  }
#endif
  for (; i < rows; ++i) {
    for (std::size_t t = 0; t < kTokenTile; ++t) {
      tile[i * kTokenTile + t] = t < tokens ? hn::GetLane(load(one, in + t * stride + i)) : 0.0F;
    }
  }
}

/// A column's lanes from `t` on, as far as there are tokens.
template <class T>
HWY_INLINE void put_tokens(Vec<Wide> sum, std::size_t t, std::size_t tokens, T* out) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  if (t + lanes <= tokens) return store(d, sum, out + t);
  HWY_ALIGN T rest[kTokenTile];
  store(d, sum, rest);
  for (std::size_t l = 0; t + l < tokens; ++l) out[t + l] = rest[l];
}

/// kCount columns of a group from its tile: out[s * stride + t], t < tokens.
template <std::size_t kCount, class T>
HWY_INLINE void columns_of(const float* tile, std::size_t rows, const float* values, std::size_t values_stride, T* out,
                           std::size_t stride, std::size_t tokens) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t t = 0; t < tokens; t += lanes) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto x = hn::LoadU(d, tile + i * kTokenTile + t);
      const float* v = values + i;
      s0 = fused(d, x, hn::Set(d, v[0]), s0);
      if constexpr (kCount == 4) {
        s1 = fused(d, x, hn::Set(d, v[values_stride]), s1);
        s2 = fused(d, x, hn::Set(d, v[2 * values_stride]), s2);
        s3 = fused(d, x, hn::Set(d, v[3 * values_stride]), s3);
      }
    }
    const auto put = [&](std::size_t s, Vec<Wide> sum) HWY_ATTR { put_tokens(sum, t, tokens, out + s * stride); };
    put(0, s0);
    if constexpr (kCount == 4) put(1, s1), put(2, s2), put(3, s3);
  }
}

/// sums [columns][kTokenTile] += the tokens of `rows` rows from `first` on, which lie in `tile`.
HWY_INLINE void scatter_rows(const Projector& r, const float* tile, std::size_t first, std::size_t rows, float* sums) {
  const Wide d;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* const x = tile + i * kTokenTile;
    for (auto at = first + i; at < r.nonzeros * r.stride(); at += r.stride()) {
      const auto value = hn::Set(d, r.values[at]);
      float* const to = sums + std::size_t{r.places[at]} * kTokenTile;
      for (std::size_t t = 0; t < kTokenTile; t += hn::Lanes(d)) {
        hn::StoreU(fused(d, hn::LoadU(d, x + t), value, hn::LoadU(d, to + t)), d, to + t);
      }
    }
  }
}

template <class T>
HWY_INLINE void compress_scattered(const Projector& r, const T* in, std::size_t in_stride, std::size_t tokens, T* out,
                                   std::size_t out_stride, float* work) {
  const Wide d;
  float* const sums = work + kRowTile * kTokenTile;
  for (std::size_t t = 0; t < tokens; t += kTokenTile) {
    const auto count = std::min(kTokenTile, tokens - t);
    std::fill_n(sums, r.columns * kTokenTile, 0.0F);
    for (std::size_t first = 0; first < r.rows; first += kRowTile) {
      const auto rows = std::min(kRowTile, r.rows - first);
      turn(in + t * in_stride + first, in_stride, count, rows, work);
      scatter_rows(r, work, first, rows, sums);
    }
    for (std::size_t c = 0; c < r.columns; ++c) {
      for (std::size_t l = 0; l < count; l += hn::Lanes(d)) {
        put_tokens(hn::LoadU(d, sums + c * kTokenTile + l), l, count, out + c * out_stride + t);
      }
    }
  }
}

template <class T>
HWY_INLINE void compress_to(const Projector& r, const T* in, std::size_t in_stride, std::size_t tokens, T* out,
                            std::size_t out_stride, float* work) {
  if (r.is_scattered()) return compress_scattered(r, in, in_stride, tokens, out, out_stride, work);
  for (std::size_t t = 0; t < tokens; t += kTokenTile) {
    const auto count = std::min(kTokenTile, tokens - t);
    for (std::size_t g = 0; g < r.groups(); ++g) {
      const auto first = r.first(g), rows = r.first(g + 1) - first;
      turn(in + t * in_stride + first, in_stride, count, rows, work);
      std::size_t s = 0;
      const auto values = [&] { return r.values + s * r.stride() + first; };
      const auto to = [&] { return out + (g * r.nonzeros + s) * out_stride + t; };
      for (; s + 4 <= r.nonzeros; s += 4) columns_of<4>(work, rows, values(), r.stride(), to(), out_stride, count);
      for (; s < r.nonzeros; ++s) columns_of<1>(work, rows, values(), r.stride(), to(), out_stride, count);
    }
  }
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
