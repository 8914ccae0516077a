// The 8-bit codes of code8.h, a vector at a time. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_CODE8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_CODE8_INL_H_
#undef SPILLWAY_KERNELS_CODE8_INL_H_
#else
#define SPILLWAY_KERNELS_CODE8_INL_H_
#endif

#include "spillway/kernels/code8.h"
#include "spillway/kernels/simd-inl.h"
#include "spillway/kernels/update.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

template <Moment kMoment, class D>
HWY_INLINE Vec<D> decode(D d, Vec<Byte<D>> code, Vec<D> scale) {
  const Bits<D> du;
  const auto wide = hn::PromoteTo(du, code);
  if constexpr (kMoment == Moment::second) {
    const auto bits = hn::Or(hn::ShiftLeft<kCodeShift>(wide), hn::BitCast(du, hn::Set(d, kSecondLowest)));
    return hn::Mul(hn::BitCast(d, bits), scale);
  } else {
    const auto bias = hn::Set(d, kFirstBias);
    const auto low = hn::Set(du, 0x7Fu << kCodeShift);
    const auto bits = select_bits(d, low, hn::ShiftLeft<kCodeShift>(wide), hn::BitCast(du, bias));
    const auto magnitude = hn::Mul(hn::Sub(hn::BitCast(d, bits), bias), scale);
    return hn::BitCast(d,
                       select_bits(d, hn::Set(du, 0x80000000u), hn::ShiftLeft<24>(wide), hn::BitCast(du, magnitude)));
  }
}

/// `random`: below 2^kCodeShift, or kCodeHalf.
template <Moment kMoment, class D>
HWY_INLINE Vec<Byte<D>> encode(D d, Vec<D> scaled, Vec<Bits<D>> random) {
  const Bits<D> du;
  if constexpr (kMoment == Moment::second) {
    const hn::RebindToSigned<D> di;  // as integers: the same for what is not a number
    const auto clamped = hn::Max(hn::BitCast(di, scaled), hn::BitCast(di, hn::Set(d, kSecondLowest)));
    return low_bytes(d, hn::ShiftRight<kCodeShift>(hn::Add(hn::BitCast(du, clamped), random)));
  } else {
    const auto bits = hn::BitCast(du, scaled);
    const auto magnitude = hn::Add(hn::Abs(scaled), hn::Set(d, kFirstBias));
    const auto code = hn::ShiftRight<kCodeShift>(hn::Add(hn::BitCast(du, magnitude), random));
    return low_bytes(d, select_bits(d, hn::Set(du, 0x7F), code, hn::ShiftRight<24>(bits)));
  }
}

/// A block of values on its way to codes; what is beyond a short block is 0.
struct Block {
  HWY_ALIGN float values[kQuantBlock];

  /// The scale for what lies here.
  template <Moment kMoment>
  [[nodiscard]] HWY_INLINE float scale() const {
    const hn::ScalableTag<float> d;
    const Bits<decltype(d)> du;
    auto a = hn::Zero(du), b = a;
    for (std::size_t i = 0; i < kQuantBlock; i += 2 * hn::Lanes(d)) {
      a = hn::Max(a, hn::BitCast(du, hn::Abs(hn::Load(d, values + i))));
      b = hn::Max(b, hn::BitCast(du, hn::Abs(hn::Load(d, values + i + hn::Lanes(d)))));
    }
    return block_scale(hn::GetLane(hn::MaxOfLanes(du, hn::Max(a, b))), kMoment);
  }

  /// Writes n codes; `random(du, i)` gives what element i is rounded with.
  template <Moment kMoment, class Random>
  HWY_INLINE void encode_to(std::uint8_t* codes, std::size_t n, float block_scale_of, const Random& random) const {
    const float reciprocal = block_reciprocal(block_scale_of);
    for_each_vector<float>(n, [&](auto d, std::size_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(d, values + i), hn::Set(d, reciprocal));
      hn::StoreU(encode<kMoment>(d, scaled, random(Bits<decltype(d)>(), i)), Byte<decltype(d)>(), codes + i);
    });
  }
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
