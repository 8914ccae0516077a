// Elements of the three types that models compute in, to and from vectors of fp32. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_ELEMENTS_INL_H_
#undef SPILLWAY_KERNELS_ELEMENTS_INL_H_
#else
#define SPILLWAY_KERNELS_ELEMENTS_INL_H_
#endif

#include "spillway/kernels/fp16.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

template <class D>
HWY_INLINE Vec<D> load(D d, const std::uint16_t* in) {
  return widen(d, hn::LoadU(Half<D>(), in));
}
template <class D>
HWY_INLINE Vec<D> load(D d, const float* in) {
  return hn::LoadU(d, in);
}
template <class D>
HWY_INLINE Vec<D> load(D d, const Fp16* in) {
  return widen_fp16(d, hn::LoadU(Half<D>(), &in->bits));
}
template <class D>
HWY_INLINE void store(D d, Vec<D> values, std::uint16_t* out) {
  hn::StoreU(round_bf16(d, values), Half<D>(), out);
}
template <class D>
HWY_INLINE void store(D d, Vec<D> values, float* out) {
  hn::StoreU(quiet(d, values), d, out);
}
template <class D>
HWY_INLINE void store(D d, Vec<D> values, Fp16* out) {
  hn::StoreU(round_fp16(d, values), Half<D>(), &out->bits);
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
