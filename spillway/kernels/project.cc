#include "spillway/kernels/project.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/project.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/compress-inl.h"
#include "spillway/kernels/elements-inl.h"
#include "spillway/kernels/random-inl.h"
#include "spillway/kernels/weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

// ---- compress

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
    close = q.columns >= lanes;
    for (std::size_t j = 0; j + lanes <= to - from; j += lanes) {
      const auto reach = static_cast<std::size_t>(columns[j + lanes - 1] - columns[j]) + q.nonzeros;
      close = close && reach <= lanes;
    }
  }
};

/// kRows rows of delta times a vector of rows of Q, those from `at` of `places` on; `out` has rows of kColumnTile.
template <std::size_t kRows, bool kClose, class D>
HWY_INLINE void times_q(D d, const Projector& q, const float* delta, const Places& places, std::size_t at, float* out) {
  const hn::RebindToSigned<D> di;
  constexpr bool kPicks = kClose && hn::MaxLanes(D()) > 1;
  const float* const values = q.values + places.begin + at;
  const std::size_t columns = q.columns, stride = q.stride();
  auto where = hn::LoadU(di, places.columns + at);
  // One array each would keep its vectors in memory.
  auto c0 = hn::Zero(d), c1 = c0, c2 = c0, c3 = c0;
  [[maybe_unused]] auto u0 = c0, u1 = c0, u2 = c0, u3 = c0;
  if constexpr (kPicks) {
    const auto first = std::min(static_cast<std::size_t>(places.columns[at]), columns - hn::Lanes(d));
    where = hn::Sub(where, hn::Set(di, static_cast<std::int32_t>(first)));
    delta += first;
    u0 = hn::LoadU(d, delta);
    if constexpr (kRows == 4) {
      u1 = hn::LoadU(d, delta + columns), u2 = hn::LoadU(d, delta + 2 * columns);
      u3 = hn::LoadU(d, delta + 3 * columns);
    }
  }
  with_nonzeros(q.nonzeros, [&](auto known) HWY_ATTR {
    const std::size_t r = known > 0 ? known : q.nonzeros;
    for (std::size_t t = 0; t < r; ++t) {
      const auto value = hn::LoadU(d, values + t * stride);
      const auto place = hn::Add(where, hn::Set(di, static_cast<std::int32_t>(t)));
      if constexpr (kPicks) {
        const auto index = hn::IndicesFromVec(d, place);
        c0 = fused(d, value, hn::TableLookupLanes(u0, index), c0);
        if constexpr (kRows == 4) {
          c1 = fused(d, value, hn::TableLookupLanes(u1, index), c1);
          c2 = fused(d, value, hn::TableLookupLanes(u2, index), c2);
          c3 = fused(d, value, hn::TableLookupLanes(u3, index), c3);
        }
      } else {
        c0 = fused(d, value, hn::GatherIndex(d, delta, place), c0);
        if constexpr (kRows == 4) {
          c1 = fused(d, value, hn::GatherIndex(d, delta + columns, place), c1);
          c2 = fused(d, value, hn::GatherIndex(d, delta + 2 * columns, place), c2);
          c3 = fused(d, value, hn::GatherIndex(d, delta + 3 * columns, place), c3);
        }
      }
    }
  });
  hn::StoreU(c0, d, out);
  if constexpr (kRows == 4) {
    hn::StoreU(c1, d, out + kColumnTile), hn::StoreU(c2, d, out + 2 * kColumnTile);
    hn::StoreU(c3, d, out + 3 * kColumnTile);
  }
}

template <std::size_t kRows, bool kClose>
HWY_INLINE void times_q_of(const Projector& q, const float* delta, const Places& places, std::size_t at,
                           std::size_t count, float* out) {
  for_each_vector<float>(count, [=, &q, &places](auto d, std::size_t i)
                                    HWY_ATTR { times_q<kRows, kClose>(d, q, delta, places, at + i, out + i); });
}

/// Calls body(tag, index) for pairs of whole vectors; returns the elements that these are.
template <class Body>
HWY_INLINE std::size_t for_each_pair(std::size_t n, const Body& body) {
  const hn::ScalableTag<float> d;
  const std::size_t step = 2 * hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= n; i += step) body(d, i);
  return i;
}

/// A row whose pairs of vectors lie as load_pair() has those of weights that come in pairs.
HWY_INLINE void part_pairs([[maybe_unused]] float* row, [[maybe_unused]] std::size_t count) {
#if HWY_TARGET != HWY_SCALAR
  for_each_pair(count, [row](auto d, std::size_t i) HWY_ATTR {
    const auto a = hn::LoadU(d, row + i), b = hn::LoadU(d, row + i + hn::Lanes(d));
    hn::StoreU(hn::ConcatEven(d, b, a), d, row + i);
    hn::StoreU(hn::ConcatOdd(d, b, a), d, row + i + hn::Lanes(d));
  });
#endif
}

/// T = (a group's rows of delta) * Q^T for `count` rows of Q from `at` of `places` on: p.nonzeros rows, and every row
/// of W in the group changes by a sum of them.
template <bool kPaired, bool kClose>
HWY_INLINE void spread(const Expansion& e, std::size_t group, const Places& places, std::size_t at, std::size_t count,
                       float* tile) {
  const std::size_t r = e.p.nonzeros, columns = e.p.columns;
  const float* const delta = e.delta + group * r * columns;
  std::size_t s = 0;
  for (; s + 4 <= r; s += 4) times_q_of<4, kClose>(e.q, delta + s * columns, places, at, count, tile + s * kColumnTile);
  for (; s < r; ++s) times_q_of<1, kClose>(e.q, delta + s * columns, places, at, count, tile + s * kColumnTile);
  for (s = 0; kPaired && s < r; ++s) part_pairs(tile + s * kColumnTile, count);
}

#if HWY_TARGET != HWY_SCALAR
/// bf16 without a remainder, for parts of at most kColumnTile elements. Numbers are drawn for each part.
class RoundedWeights {
 public:
  static constexpr bool kPaired = false;

  RoundedWeights(const UpdateSpan& span, const Expansion& expansion)
      : weight_(reinterpret_cast<std::uint16_t*>(span.weight)),
        index_(rounding_index(span.index)),
        key_(expansion.seed, expansion.step) {}

  HWY_INLINE void begin(std::size_t at, std::size_t count) const {
    begin_ = at;
    random_.draw(key_, index_ + at, count);
  }
  HWY_INLINE void prefetch_weight(std::size_t i) const { prefetch<0>(weight_ + i); }
  template <class D>
  HWY_INLINE Vec<D> load(D d, std::size_t i) const {
    return widen(d, hn::LoadU(Half<D>(), weight_ + i));
  }
  template <class D>
  HWY_INLINE void store(D d, std::size_t i, Vec<D> weight) const {
    const auto chance = hn::PromoteTo(Bits<D>(), hn::LoadU(Half<D>(), random_.first + (i - begin_)));
    const auto rounded = hn::ShiftRight<16>(add_chance(d, weight, chance));
    hn::StoreU(hn::TruncateTo(Half<D>(), rounded), Half<D>(), weight_ + i);
  }

 private:
  std::uint16_t* weight_;
  std::uint64_t index_;
  RandomKey key_;
  mutable std::size_t begin_ = 0;
  mutable Random<kColumnTile> random_;
};
#endif

/// Part of a row of W: `count` elements from `at` of the span on, each by change(tag, its number in the part). `next`:
/// how far from here the part begins that comes after.
template <class WeightsOf, class ChangeOf>
HWY_INLINE void move_part(const WeightsOf& weights, const ChangeOf& change, float keep, std::size_t at,
                          std::size_t count, std::ptrdiff_t next) {
  if constexpr (requires { weights.begin(at, count); }) weights.begin(at, count);
  const auto changed = [=](auto d, auto master, std::size_t i)
                           HWY_ATTR { return fused(d, master, hn::Set(d, keep), change(d, i)); };
  std::size_t done = 0;
  if constexpr (WeightsOf::kPaired) {
    done = for_each_pair(count, [=, &weights](auto d, std::size_t i) HWY_ATTR {
      weights.prefetch_weight(at + i + next);
      Vec<decltype(d)> even, odd;
      weights.load_pair(d, at + i, even, odd);
      even = changed(d, even, i), odd = changed(d, odd, i + hn::Lanes(d));
      if (HWY_UNLIKELY(!hn::AllFalse(d, hn::IsNaN(hn::Add(even, odd))))) even = quiet(d, even), odd = quiet(d, odd);
      weights.store_pair(d, at + i, even, odd);
    });
  }
  for_each_vector<float>(count - done, [=, &weights](auto d, std::size_t i) HWY_ATTR {
    weights.prefetch_weight(at + done + i + next);
    const auto master = weights.load(d, at + done + i);
    weights.store(d, at + done + i, quiet(d, changed(d, master, done + i)));
  });
}

/// A part whose row of P has `values`, `stride` apart.
template <class WeightsOf>
HWY_INLINE void apply_part(const WeightsOf& weights, std::size_t nonzeros, const float* values, std::size_t stride,
                           const float* tile, float keep, std::size_t at, std::size_t count, std::ptrdiff_t next) {
  with_nonzeros(nonzeros, [=, &weights](auto known) HWY_ATTR {
    const std::size_t r = known > 0 ? known : nonzeros;
    const auto change = [=](auto d, std::size_t i) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (std::size_t s = 0; s < r; ++s) {
        sum = fused(d, hn::Set(d, values[s * stride]), hn::LoadU(d, tile + s * kColumnTile + i), sum);
      }
      return sum;
    };
    move_part(weights, change, keep, at, count, next);
  });
}

/// Rows [row, row + rows) of one group of P, the columns of `places`; elements from `at` of the span on.
template <class WeightsOf>
HWY_INLINE void apply_group(const Expansion& e, const WeightsOf& weights, float keep, const Places& places,
                            std::size_t row, std::size_t rows, std::size_t at, float* tile) {
  const auto& p = e.p;
  const auto columns = e.q.rows, width = places.end - places.begin;
  for (std::size_t begin = 0; begin < width; begin += kColumnTile) {
    const auto count = std::min(kColumnTile, width - begin);
    if (places.close) {
      spread<WeightsOf::kPaired, true>(e, p.group_of(row), places, begin, count, tile);
    } else {
      spread<WeightsOf::kPaired, false>(e, p.group_of(row), places, begin, count, tile);
    }
    for (std::size_t k = 0; k < rows; ++k) {
      // Behind the group's last row come the first one's next columns.
      const auto next = static_cast<std::ptrdiff_t>(k + 1 < rows ? columns : count - (rows - 1) * columns);
      apply_part(weights, p.nonzeros, p.values + row + k, p.stride(), tile, keep, at + k * columns + begin, count,
                 next);
    }
  }
}

template <class WeightsOf>
HWY_NOINLINE void apply_as(const WeightsOf weights, const Expansion& e, float keep, const UpdateSpan& span,
                           std::size_t first, float* work) {
  const auto columns = e.q.rows;
  Places places{.columns = reinterpret_cast<std::int32_t*>(work + e.p.nonzeros * kColumnTile)};
  for (std::size_t at = 0; at < span.n;) {
    const auto row = (first + at) / columns, begin = (first + at) % columns;
    const auto whole = begin == 0 ? (span.n - at) / columns : 0;
    const auto rows = std::min(whole, e.p.first(e.p.group_of(row) + 1) - row);
    const auto end = rows > 0 ? columns : std::min(columns, begin + (span.n - at));
    places.find(e.q, begin, end);
    apply_group(e, weights, keep, places, row, std::max<std::size_t>(1, rows), at, work);
    at += rows > 0 ? rows * columns : end - begin;
  }
}

/// line [d] = row `row` of P, times delta.
HWY_INLINE void times_p(const Expansion& e, std::size_t row, float* line) {
  for_each_vector<float>(e.p.columns, [=, &p = e.p, delta = e.delta](auto d, std::size_t k) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (auto at = row; at < p.nonzeros * p.stride(); at += p.stride()) {
      sum = fused(d, hn::Set(d, p.values[at]), hn::LoadU(d, delta + p.places[at] * p.columns + k), sum);
    }
    hn::StoreU(sum, d, line + k);
  });
}

/// out = `line` times the transpose of `count` rows of Q, from `begin` on.
HWY_INLINE void through_q(const Projector& q, const float* line, std::size_t begin, std::size_t count, float* out) {
  for_each_vector<float>(count, [=, &q](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto* const places = reinterpret_cast<const std::int32_t*>(q.places);
    auto sum = hn::Zero(d);
    for (auto at = begin + i; at < q.nonzeros * q.stride(); at += q.stride()) {
      const auto values = hn::GatherIndex(d, line, hn::LoadU(di, places + at));
      sum = fused(d, hn::LoadU(d, q.values + at), values, sum);
    }
    hn::StoreU(sum, d, out + i);
  });
}

template <class WeightsOf>
HWY_NOINLINE void apply_scattered(const WeightsOf weights, const Expansion& e, float keep, const UpdateSpan& span,
                                  std::size_t first, float* work) {
  const auto columns = e.q.rows;
  float* const tile = work + e.p.columns;
  for (std::size_t at = 0, width = 0; at < span.n; at += width) {
    const auto row = (first + at) / columns, begin = (first + at) % columns;
    width = std::min(columns - begin, span.n - at);
    times_p(e, row, work);
    for (std::size_t done = 0; done < width; done += kColumnTile) {
      const auto count = std::min(kColumnTile, width - done);
      through_q(e.q, work, begin + done, count, tile);
      if constexpr (WeightsOf::kPaired) part_pairs(tile, count);
      const auto change = [=](auto d, std::size_t i) HWY_ATTR { return hn::LoadU(d, tile + i); };
      move_part(weights, change, keep, at + done, count, static_cast<std::ptrdiff_t>(count));
    }
  }
}

template <class WeightsOf>
HWY_INLINE void apply_by(const WeightsOf& weights, const Expansion& e, float keep, const UpdateSpan& span,
                         std::size_t first, float* work) {
  return e.p.is_scattered() ? apply_scattered(weights, e, keep, span, first, work)
                            : apply_as(weights, e, keep, span, first, work);
}

void apply_to(Weights weights, const Expansion& e, float keep, const UpdateSpan& span, std::size_t first, float* work) {
  if (weights == Weights::bf16 && span.remainder == nullptr) {
#if HWY_TARGET == HWY_SCALAR
    return scalar::apply(weights, e, keep, span, first);
#else
    return apply_by(RoundedWeights(span, e), e, keep, span, first, work);
#endif
  }
  switch (weights) {
    case Weights::bf16:
      return apply_by(SplitWeights(span), e, keep, span, first, work);
    case Weights::fp32:
      return apply_by(Fp32Weights(span), e, keep, span, first, work);
    case Weights::fp16:
      return apply_by(Fp16Weights(span), e, keep, span, first, work);
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
