// The fp32 master in two halves, as patterns. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_SPLIT_INL_H_
#undef SPILLWAY_KERNELS_SPLIT_INL_H_
#else
#define SPILLWAY_KERNELS_SPLIT_INL_H_
#endif

#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

template <class D>
HWY_INLINE Vec<Bits<D>> join_bits(D, Vec<Half<D>> weight, Vec<Half<D>> remainder) {
  const Bits<D> du;
  const auto high = hn::Sub(weight, hn::ShiftRight<15>(remainder));
  return hn::Or(hn::ShiftLeft<16>(hn::PromoteTo(du, high)), hn::PromoteTo(du, remainder));
}

template <class D>
HWY_INLINE void split_bits(D d, Vec<Bits<D>> bits, std::uint16_t* weight, std::uint16_t* remainder) {
  const Half<D> dh;
  const auto rounded = hn::Add(bits, hn::Set(Bits<D>(), 0x8000));
  hn::StoreU(low_halves(d, hn::ShiftRight<16>(rounded)), dh, weight);
  hn::StoreU(low_halves(d, bits), dh, remainder);
}

#if HWY_TARGET != HWY_SCALAR
// Twice as many elements as D has lanes, in two vectors: elements 0, 2, 4, ... and 1, 3, 5, ... A word of memory holds
// the halves of one of each, so that shifts and masks do what takes shuffles where neighbours stay neighbours.

/// Separates two vectors of neighbours into those with even and those with odd numbers.
template <class D>
HWY_INLINE void separate(D d, Vec<D> low, Vec<D> high, Vec<D>& even, Vec<D>& odd) {
  even = hn::ConcatEven(d, high, low), odd = hn::ConcatOdd(d, high, low);
}

template <class D>
HWY_INLINE void widen_pair(D d, const std::uint16_t* bf16, Vec<D>& even, Vec<D>& odd) {
  const Bits<D> du;
  const auto words = hn::BitCast(du, hn::LoadU(hn::Repartition<std::uint16_t, D>(), bf16));
  even = hn::BitCast(d, hn::ShiftLeft<16>(words));
  odd = hn::BitCast(d, hn::AndNot(hn::Set(du, 0xFFFF), words));
}

template <class D>
HWY_INLINE void join_pair(D d, const std::uint16_t* weight, const std::uint16_t* remainder, Vec<D>& even, Vec<D>& odd) {
  const hn::Repartition<std::uint16_t, D> halves;
  const Bits<D> du;
  const auto low = hn::LoadU(halves, remainder);
  const auto high = hn::BitCast(du, hn::Sub(hn::LoadU(halves, weight), hn::ShiftRight<15>(low)));
  const auto rest = hn::BitCast(du, low), mask = hn::Set(du, 0xFFFF);
  even = hn::BitCast(d, select_bits(d, mask, rest, hn::ShiftLeft<16>(high)));
  odd = hn::BitCast(d, select_bits(d, mask, hn::ShiftRight<16>(rest), high));
}

template <class D>
HWY_INLINE void split_pair(D d, Vec<D> even, Vec<D> odd, std::uint16_t* weight, std::uint16_t* remainder) {
  const hn::Repartition<std::uint16_t, D> halves;
  const Bits<D> du;
  const auto a = hn::BitCast(du, even), b = hn::BitCast(du, odd);
  const auto mask = hn::Set(du, 0xFFFF), half = hn::Set(du, 0x8000);
  const auto high = select_bits(d, mask, hn::ShiftRight<16>(hn::Add(a, half)), hn::Add(b, half));
  const auto low = select_bits(d, mask, a, hn::ShiftLeft<16>(b));
  hn::StoreU(hn::BitCast(halves, high), halves, weight);
  hn::StoreU(hn::BitCast(halves, low), halves, remainder);
}
#endif

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
