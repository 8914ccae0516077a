#include "spillway/kernels/project.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/project.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/elements-inl.h"
#include "spillway/kernels/weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

// ---- compress

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

/// kCount columns of a group from its tile: out[s * stride + t], t < tokens.
template <std::size_t kCount, class T>
HWY_INLINE void columns_of(const float* tile, std::size_t rows, const float* values, std::size_t values_stride, T* out,
                           std::size_t stride, std::size_t tokens) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN T rest[kTokenTile];
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
    const auto put = [&](std::size_t s, Vec<Wide> sum) HWY_ATTR {
      if (t + lanes <= tokens) return store(d, sum, out + s * stride + t);
      store(d, sum, rest);
      for (std::size_t l = 0; t + l < tokens; ++l) out[s * stride + t + l] = rest[l];
    };
    put(0, s0);
    if constexpr (kCount == 4) put(1, s1), put(2, s2), put(3, s3);
  }
}

template <class T>
HWY_INLINE void compress_to(const Projector& r, const T* in, std::size_t in_stride, std::size_t tokens, T* out,
                            std::size_t out_stride, float* work) {
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

void compress_bf16(const Projector& r, const std::uint16_t* in, std::size_t in_stride, std::size_t tokens,
                   std::uint16_t* out, std::size_t out_stride, float* work) {
  compress_to(r, in, in_stride, tokens, out, out_stride, work);
}
void compress_fp32(const Projector& r, const float* in, std::size_t in_stride, std::size_t tokens, float* out,
                   std::size_t out_stride, float* work) {
  compress_to(r, in, in_stride, tokens, out, out_stride, work);
}
void compress_fp16(const Projector& r, const Fp16* in, std::size_t in_stride, std::size_t tokens, Fp16* out,
                   std::size_t out_stride, float* work) {
  compress_to(r, in, in_stride, tokens, out, out_stride, work);
}

// ---- apply

/// Calls body(constant) with r as a constant where it is the usual one, else with 0: a loop that is known is unrolled.
template <class Body>
HWY_INLINE void with_nonzeros(std::size_t r, const Body& body) {
  if (r == 4) return body(std::integral_constant<std::size_t, 4>());
  body(std::integral_constant<std::size_t, 0>());
}

/// u[k] = (row i of P) * delta[:, k], for k in [begin, end). Four values go by value, so that they stay in registers.
HWY_INLINE void mix_rows(const Expansion& e, std::size_t row, std::size_t begin, std::size_t end, float* u) {
  const auto& p = e.p;
  const float* const delta = e.delta + p.group_of(row) * p.nonzeros * p.columns + begin;
  const float* const values = p.values + row;
  const std::size_t r = p.nonzeros, stride = p.stride(), columns = p.columns;
  if (r == 4) {
    const float v0 = values[0], v1 = values[stride], v2 = values[2 * stride], v3 = values[3 * stride];
    return for_each_vector<float>(end - begin, [=](auto d, std::size_t k) HWY_ATTR {
      auto sum = fused(d, hn::Set(d, v0), hn::LoadU(d, delta + k), hn::Zero(d));
      sum = fused(d, hn::Set(d, v1), hn::LoadU(d, delta + columns + k), sum);
      sum = fused(d, hn::Set(d, v2), hn::LoadU(d, delta + 2 * columns + k), sum);
      sum = fused(d, hn::Set(d, v3), hn::LoadU(d, delta + 3 * columns + k), sum);
      hn::StoreU(sum, d, u + begin + k);
    });
  }
  for_each_vector<float>(end - begin, [=](auto d, std::size_t k) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::size_t s = 0; s < r; ++s) {
      sum = fused(d, hn::Set(d, values[s * stride]), hn::LoadU(d, delta + s * columns + k), sum);
    }
    hn::StoreU(sum, d, u + begin + k);
  });
}

/// Where the rows of Q have their values: columns[j - begin] is the first of the group of row j.
struct Places {
  std::size_t begin = 1, end = 0;  ///< rows of Q
  std::int32_t* columns = nullptr;
  bool close = false;  ///< a vector holds all columns of as many neighbouring rows as it has lanes

  HWY_INLINE void find(const Projector& q, std::size_t from, std::size_t to) {
    if (begin == from && end == to) return;
    begin = from, end = to;
    for (std::size_t j = from, g = q.group_of(from); j < to; ++g) {
      const auto last = std::min(to, q.first(g + 1));
      for (; j < last; ++j) columns[j - from] = static_cast<std::int32_t>(g * q.nonzeros);
    }
    const auto lanes = hn::Lanes(hn::ScalableTag<float>());
    close = true;
    for (std::size_t j = 0; j + lanes <= to - from; j += lanes) {
      const auto reach = static_cast<std::size_t>(columns[j + lanes - 1] - columns[j]) + q.nonzeros;
      close = close && reach <= lanes;
    }
  }
};

/// `kRows` rows of W, or a part of one: elements from `at` of the span on, where row k begins `row` elements behind the
/// one before; their u lie `u_stride` apart.
template <std::size_t kRows, bool kClose, class WeightsOf>
HWY_INLINE void apply_rows(const WeightsOf& weights, const Projector& q, float keep, const float* u,
                           std::size_t u_stride, const Places& places, std::size_t at, std::size_t row) {
  with_nonzeros(q.nonzeros, [&](auto known) HWY_ATTR {
    const std::size_t r = known > 0 ? known : q.nonzeros, stride = q.stride();
    const float* const values = q.values + places.begin;
    const std::int32_t* const columns = places.columns;
    for_each_vector<float>(places.end - places.begin, [=](auto d, std::size_t i) HWY_ATTR {
      using D = decltype(d);
      const hn::RebindToSigned<D> di;
      constexpr bool kPicks = kClose && hn::MaxLanes(D()) > 1;
      const auto where = hn::LoadU(di, columns + i);
      const float* from = u;
      [[maybe_unused]] auto lane = where;
      if constexpr (kPicks) {
        from += columns[i];
        lane = hn::Sub(where, hn::Set(di, columns[i]));
      }
      // One array each would keep its vectors in memory.
      auto c0 = hn::Zero(d), c1 = c0, c2 = c0, c3 = c0;
      [[maybe_unused]] auto u0 = c0, u1 = c0, u2 = c0, u3 = c0;
      if constexpr (kPicks) {
        u0 = hn::LoadU(d, from);
        if constexpr (kRows == 4) {
          u1 = hn::LoadU(d, from + u_stride), u2 = hn::LoadU(d, from + 2 * u_stride);
          u3 = hn::LoadU(d, from + 3 * u_stride);
        }
      }
      for (std::size_t s = 0; s < r; ++s) {
        const auto value = hn::LoadU(d, values + s * stride + i);
        const auto place = hn::Add(kPicks ? lane : where, hn::Set(di, static_cast<std::int32_t>(s)));
        if constexpr (kPicks) {
          const auto index = hn::IndicesFromVec(d, place);
          c0 = fused(d, value, hn::TableLookupLanes(u0, index), c0);
          if constexpr (kRows == 4) {
            c1 = fused(d, value, hn::TableLookupLanes(u1, index), c1);
            c2 = fused(d, value, hn::TableLookupLanes(u2, index), c2);
            c3 = fused(d, value, hn::TableLookupLanes(u3, index), c3);
          }
        } else {
          c0 = fused(d, value, hn::GatherIndex(d, u, place), c0);
          if constexpr (kRows == 4) {
            c1 = fused(d, value, hn::GatherIndex(d, u + u_stride, place), c1);
            c2 = fused(d, value, hn::GatherIndex(d, u + 2 * u_stride, place), c2);
            c3 = fused(d, value, hn::GatherIndex(d, u + 3 * u_stride, place), c3);
          }
        }
      }
      const auto put = [&](std::size_t k, Vec<D> change) HWY_ATTR {
        const auto to = at + k * row + i;
        weights.prefetch_at(to);
        const auto master = fused(d, weights.load(d, to), hn::Set(d, keep), change);
        weights.store(d, to, quiet(d, master));
      };
      put(0, c0);
      if constexpr (kRows == 4) put(1, c1), put(2, c2), put(3, c3);
    });
  });
}

template <std::size_t kRows, class WeightsOf>
HWY_INLINE void apply_tile(const Expansion& e, const WeightsOf& weights, float keep, float* u, const Places& places,
                           std::size_t row, std::size_t at) {
  const auto& q = e.q;
  const auto u_stride = q.columns + kProjectorPad;
  for (std::size_t k = 0; k < kRows; ++k) {
    mix_rows(e, row + k, q.group_of(places.begin) * q.nonzeros, (q.group_of(places.end - 1) + 1) * q.nonzeros,
             u + k * u_stride);
  }
  if (places.close) {
    apply_rows<kRows, true>(weights, q, keep, u, u_stride, places, at, q.rows);
  } else {
    apply_rows<kRows, false>(weights, q, keep, u, u_stride, places, at, q.rows);
  }
}

template <class WeightsOf>
HWY_NOINLINE void apply_as(const Expansion& e, float keep, const UpdateSpan& span, std::size_t first, float* work) {
  const auto& q = e.q;
  const WeightsOf weights(span);
  Places places{.columns = reinterpret_cast<std::int32_t*>(work + kRowTile * (q.columns + kProjectorPad))};
  for (std::size_t at = 0; at < span.n;) {
    const auto row = (first + at) / q.rows, begin = (first + at) % q.rows;
    const auto end = std::min(q.rows, begin + (span.n - at));
    places.find(q, begin, end);
    if (begin == 0 && span.n - at >= kRowTile * q.rows) {
      apply_tile<kRowTile>(e, weights, keep, work, places, row, at);
      at += kRowTile * q.rows;
    } else {
      apply_tile<1>(e, weights, keep, work, places, row, at);
      at += end - begin;
    }
  }
}

void apply_to(Weights weights, const Expansion& e, float keep, const UpdateSpan& span, std::size_t first, float* work) {
  switch (weights) {
    case Weights::split:
      return apply_as<SplitWeights>(e, keep, span, first, work);
    case Weights::fp32:
      return apply_as<Fp32Weights>(e, keep, span, first, work);
    case Weights::fp16:
      return apply_as<Fp16Weights>(e, keep, span, first, work);
  }
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(compress_bf16);
HWY_EXPORT(compress_fp32);
HWY_EXPORT(compress_fp16);
HWY_EXPORT(apply_to);

void compress(const Projector& projector, const std::uint16_t* in, std::size_t in_stride, std::size_t tokens,
              std::uint16_t* out, std::size_t out_stride, float* work) {
  HWY_DYNAMIC_DISPATCH(compress_bf16)(projector, in, in_stride, tokens, out, out_stride, work);
}

void compress(const Projector& projector, const float* in, std::size_t in_stride, std::size_t tokens, float* out,
              std::size_t out_stride, float* work) {
  HWY_DYNAMIC_DISPATCH(compress_fp32)(projector, in, in_stride, tokens, out, out_stride, work);
}

void compress(const Projector& projector, const Fp16* in, std::size_t in_stride, std::size_t tokens, Fp16* out,
              std::size_t out_stride, float* work) {
  HWY_DYNAMIC_DISPATCH(compress_fp16)(projector, in, in_stride, tokens, out, out_stride, work);
}

void apply(Weights weights, const Expansion& expansion, float keep, const UpdateSpan& span, std::size_t first,
           float* work) {
  HWY_DYNAMIC_DISPATCH(apply_to)(weights, expansion, keep, span, first, work);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
