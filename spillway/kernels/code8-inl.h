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
  if constexpr (kMoment == Moment::second) {
    const auto wide = hn::PromoteTo(du, code);
    const auto bits = hn::Or(hn::ShiftLeft<kCodeShift>(wide), hn::BitCast(du, hn::Set(d, kSecondLowest)));
    return hn::Mul(hn::BitCast(d, bits), scale);
  } else {
    const hn::RebindToSigned<D> di;  // widened with its sign, the code has it where the float wants it
    const auto wide = hn::BitCast(du, hn::PromoteTo(di, hn::BitCast(hn::Rebind<std::int8_t, D>(), code)));
    const auto bias = hn::Set(d, kFirstBias);
    const auto low = hn::Set(du, 0x7Fu << kCodeShift);
    const auto bits = select_bits(d, low, hn::ShiftLeft<kCodeShift>(wide), hn::BitCast(du, bias));
    const auto magnitude = hn::Mul(hn::Sub(hn::BitCast(d, bits), bias), scale);
    return hn::BitCast(d, select_bits(d, hn::Set(du, 0x80000000u), wide, hn::BitCast(du, magnitude)));
  }
}

/// `reciprocal`: block_reciprocal(); `random`: below 2^kCodeShift, or kCodeHalf.
template <Moment kMoment, class D>
HWY_INLINE Vec<Byte<D>> encode(D d, Vec<D> value, float reciprocal, Vec<Bits<D>> random) {
  const Bits<D> du;
  const auto factor = hn::Set(d, reciprocal);
  if constexpr (kMoment == Moment::second) {
    const hn::RebindToSigned<D> di;  // as integers: the same for what is not a number
    const auto clamped = hn::Max(hn::BitCast(di, hn::Mul(value, factor)), hn::BitCast(di, hn::Set(d, kSecondLowest)));
    return low_bytes(d, hn::ShiftRight<kCodeShift>(hn::Add(hn::BitCast(du, clamped), random)));
  } else {  // fused or not: the product is exact, or far below half a unit of the bias
    const auto magnitude = hn::MulAdd(hn::Abs(value), factor, hn::Set(d, kFirstBias));
    const auto code = hn::ShiftRight<kCodeShift>(hn::Add(hn::BitCast(du, magnitude), random));
    return low_bytes(d, select_bits(d, hn::Set(du, 0x7F), code, hn::ShiftRight<24>(hn::BitCast(du, value))));
  }
}

/// Of what is not a number more than of any number.
template <class D>
HWY_INLINE Vec<Bits<D>> magnitude_bits(D, Vec<D> value) {
  return hn::BitCast(Bits<D>(), hn::Abs(value));
}

/// The scale for a block of which a lane has the largest magnitude_bits().
template <Moment kMoment>
HWY_INLINE float scale_for(Vec<hn::ScalableTag<std::uint32_t>> largest) {
  return block_scale(hn::GetLane(hn::MaxOfLanes(hn::ScalableTag<std::uint32_t>(), largest)), kMoment);
}

/// A block of values on its way to codes; what is beyond a short block is 0.
struct Block {
  HWY_ALIGN float values[kQuantBlock];

  /// The scale for what lies here, when nobody has looked at it on its way.
  template <Moment kMoment>
  [[nodiscard]] HWY_INLINE float scale() const {
    const hn::ScalableTag<float> d;
    const Bits<decltype(d)> du;
    auto largest = hn::Zero(du);
    for (std::size_t i = 0; i < kQuantBlock; i += hn::Lanes(d)) {
      largest = hn::Max(largest, magnitude_bits(d, hn::Load(d, values + i)));
    }
    return scale_for<kMoment>(largest);
  }
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
