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
HWY_INLINE Vec<Bits<D>> join_bits(D, Vec<Half<D>> weight, Vec<Half<D>> residual) {
  const Bits<D> du;
  const auto high = hn::Sub(weight, hn::ShiftRight<15>(residual));
  return hn::Or(hn::ShiftLeft<16>(hn::PromoteTo(du, high)), hn::PromoteTo(du, residual));
}

template <class D>
HWY_INLINE void split_bits(D d, Vec<Bits<D>> bits, std::uint16_t* weight, std::uint16_t* residual) {
  const Half<D> dh;
  const auto rounded = hn::Add(bits, hn::Set(Bits<D>(), 0x8000));
  hn::StoreU(low_halves(d, hn::ShiftRight<16>(rounded)), dh, weight);
  hn::StoreU(low_halves(d, bits), dh, residual);
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
