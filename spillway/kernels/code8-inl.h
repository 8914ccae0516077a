// The 8-bit codes of code8.h, two vectors at a time. Included after foreach_target.h.
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

#if HWY_TARGET != HWY_SCALAR

/// Values of elements 0, 2, 4, ... and of 1, 3, 5, ...: a half-word of memory has the codes of one of each.
template <Moment kMoment, class D>
HWY_INLINE void decode_pair(D d, const std::uint8_t* codes, Vec<D> scale, Vec<D>& even, Vec<D>& odd) {
  const Bits<D> du;
  const auto halves = hn::LoadU(Half<D>(), reinterpret_cast<const std::uint16_t*>(codes));
  if constexpr (kMoment == Moment::second) {
    const auto words = hn::PromoteTo(du, halves);
    const auto mask = hn::Set(du, 0xFFu << kCodeShift), lowest = hn::BitCast(du, hn::Set(d, kSecondLowest));
    const auto value = [=](Vec<Bits<D>> code)
                           HWY_ATTR { return hn::Mul(hn::BitCast(d, select_bits(d, mask, code, lowest)), scale); };
    even = value(hn::ShiftLeft<kCodeShift>(words)), odd = value(hn::ShiftLeft<kCodeShift - 8>(words));
  } else {  // shifted with their signs, codes have them where floats want them
    const hn::RebindToSigned<D> di;
    const auto words = hn::PromoteTo(di, hn::BitCast(hn::Rebind<std::int16_t, D>(), halves));
    const auto mask = hn::Set(du, 0x80000000u | 0x7Fu << kCodeShift), sign = hn::Set(du, 0x80000000u);
    const auto bias = hn::BitCast(du, hn::Set(d, kFirstBias));
    const auto scaled_bias = hn::BitCast(du, hn::Mul(hn::Set(d, kFirstBias), scale));
    const auto value = [=](hn::VFromD<decltype(di)> code) HWY_ATTR {  // fused or not: both products are exact
      const auto bits = hn::BitCast(du, code);
      return hn::MulSub(hn::BitCast(d, select_bits(d, mask, bits, bias)), scale,
                        hn::BitCast(d, select_bits(d, sign, bits, scaled_bias)));
    };
    even = value(hn::ShiftRight<5>(hn::ShiftLeft<24>(words))), odd = value(hn::ShiftLeft<kCodeShift - 8>(words));
  }
}

/// `factor`: block_reciprocal() of the scale; `chance`: below 2^kCodeShift, or kCodeHalf.
template <Moment kMoment, class D>
HWY_INLINE void encode_pair(D d, Vec<D> even, Vec<D> odd, Vec<D> factor, Vec<Bits<D>> even_chance,
                            Vec<Bits<D>> odd_chance, std::uint8_t* codes) {
  const Bits<D> du;
  const hn::Repartition<std::uint16_t, D> halves;
  const auto rounded = [=](Vec<D> value, Vec<Bits<D>> chance) HWY_ATTR {
    if constexpr (kMoment == Moment::second) {
      const hn::RebindToSigned<D> di;  // as integers: the same for what is not a number
      const auto lowest = hn::BitCast(di, hn::Set(d, kSecondLowest));
      return hn::Add(hn::BitCast(du, hn::Max(hn::BitCast(di, hn::Mul(value, factor)), lowest)), chance);
    } else {  // fused or not: the product is exact, or far below half a unit of the bias
      const auto bias =
          select_bits(d, hn::Set(du, 0x80000000u), hn::BitCast(du, value), hn::BitCast(du, hn::Set(d, kFirstBias)));
      return hn::Add(hn::BitCast(du, hn::MulAdd(value, factor, hn::BitCast(d, bias))), chance);
    }
  };
  const auto top = hn::BitCast(
      halves,
      select_bits(d, hn::Set(du, 0xFFFF), hn::ShiftRight<16>(rounded(even, even_chance)), rounded(odd, odd_chance)));
  auto code = hn::ShiftRight<kCodeShift - 16>(top);
  if constexpr (kMoment == Moment::first) {
    code = hn::BitCast(halves, select_bits(d, hn::Set(du, 0x007F007F), hn::BitCast(du, code),
                                           hn::BitCast(du, hn::ShiftRight<8>(top))));
  }
  hn::StoreU(low_bytes(halves, code), hn::Rebind<std::uint8_t, decltype(halves)>(), codes);
}

/// The bits of the magnitude; those of what is not a number are more than those of any number.
template <class D>
HWY_INLINE Vec<Bits<D>> magnitude_bits(D, Vec<D> value) {
  const Bits<D> du;
  return hn::AndNot(hn::Set(du, 0x80000000u), hn::BitCast(du, value));
}

/// block_scale() and block_reciprocal() for a block of which a lane has the largest magnitude_bits(); in every lane.
template <Moment kMoment, class D>
HWY_INLINE void scale_for(D d, Vec<Bits<D>> lanes, Vec<D>& scale, Vec<D>& reciprocal) {
  const Bits<D> du;
  const auto bits = [=](float value) HWY_ATTR { return hn::BitCast(du, hn::Set(d, value)); };
  const auto largest = hn::MaxOfLanes(du, lanes);
  const std::uint32_t highest = std::bit_cast<std::uint32_t>(kHighest<kMoment>) & 0x7FFFFF;
  const auto up = hn::And(hn::Add(largest, hn::Set(du, 0x7FFFFF - highest)), hn::Set(du, 0x7F800000));
  const auto power = hn::Max(up, bits(kLowestScale));
  const auto none = hn::Eq(largest, hn::Zero(du));
  const auto beyond = hn::Not(hn::Lt(largest, bits(kBeyondScales)));
  scale = hn::BitCast(d, hn::IfThenElse(beyond, hn::Set(du, kFloatNaN), hn::IfThenZeroElse(none, power)));
  reciprocal = hn::BitCast(
      d, hn::IfThenElse(beyond, bits(1), hn::IfThenZeroElse(none, hn::Sub(hn::Set(du, 0x7F000000), power))));
}

#endif

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
