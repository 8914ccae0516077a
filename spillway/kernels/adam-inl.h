// AdamFactors::scalar_change on vectors: what Adam and AdamW share. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_ADAM_INL_H_
#undef SPILLWAY_KERNELS_ADAM_INL_H_
#else
#define SPILLWAY_KERNELS_ADAM_INL_H_
#endif

#include "spillway/kernels/adam_factors.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

/// root / bias2_root, correctly rounded, without the division where there is a fused multiply-add. Each line of the
/// correction adds the exact remainder times the reciprocal; the first brings the quotient within 0.51 ulp, from where
/// the second is exact (Markstein, IBM J. Res. Dev. 34-1, 1990). root = inf and bias2_root = 0 leave a NaN remainder
/// and a product that is right already.
template <class D>
HWY_INLINE Vec<D> divide_by_bias2_root(D d, Vec<D> root, const AdamFactors& f) {
  const auto divisor = hn::Set(d, f.bias2_root);
#if HWY_NATIVE_FMA
  const auto reciprocal = hn::Set(d, f.bias2_reciprocal);
  const auto product = hn::Mul(root, reciprocal);
  auto quotient = hn::MulAdd(hn::NegMulAdd(product, divisor, root), reciprocal, product);
  quotient = hn::MulAdd(hn::NegMulAdd(quotient, divisor, root), reciprocal, quotient);
  return hn::IfThenElse(hn::IsNaN(quotient), product, quotient);
#else
  return hn::Div(root, divisor);
#endif
}

/// The new moments in place, and what the change divides by. kExact is f.exact.
template <bool kExact, class D>
HWY_INLINE Vec<D> adam_denominator(D d, const AdamFactors& f, Vec<D> grad, Vec<D>& m, Vec<D>& v) {
  auto base = m;
  if (f.lerp_from_grad) base = grad;
  m = fused(d, hn::Set(d, f.lerp_weight), hn::Sub(grad, m), base);
  v = fused(d, hn::Mul(hn::Set(d, f.square_weight), grad), grad, hn::Mul(hn::Set(d, f.beta2), v));
  const auto root = hn::Sqrt(v);
  const auto epsilon = hn::Set(d, f.epsilon);
  if constexpr (kExact) return hn::Add(divide_by_bias2_root(d, root, f), epsilon);
  return fused(d, root, hn::Set(d, f.bias2_reciprocal), epsilon);
}

template <class D>
HWY_INLINE Vec<D> adam_change(D d, const AdamFactors& f, Vec<D> m, Vec<D> denominator) {
  return hn::Div(hn::Mul(hn::Set(d, f.minus_step_size), m), denominator);
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
