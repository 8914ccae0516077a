#include "spillway/kernels/lion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/lion.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

/// Lion::scalar on vectors.
template <bool kExact>
struct Formula : Lion {
  using Lion::Lion;

  static constexpr bool kReadsWeight = false;

  template <class D>
  HWY_INLINE Vec<D> prepare(D d, Vec<D> /*weight*/, Vec<D> grad, Vec<D>& exp_avg, Vec<D>& /*none*/) const {
    const auto direction = hn::Add(hn::Mul(exp_avg, hn::Set(d, beta1)), hn::Mul(grad, hn::Set(d, grad1)));
    exp_avg = fused(d, grad, hn::Set(d, grad2), hn::Mul(exp_avg, hn::Set(d, beta2)));
    const auto zero = hn::Zero(d), rate = hn::Set(d, learning_rate);
    const auto still = hn::Or(direction, hn::Neg(zero));  // -0, which changes nothing, or NaN
    const auto up = hn::IfThenElse(hn::Lt(direction, zero), rate, still);
    return hn::IfThenElse(hn::Gt(direction, zero), hn::Neg(rate), up);
  }
  template <class D>
  HWY_INLINE Vec<D> apply(D d, Vec<D> weight, Vec<D> /*exp_avg*/, Vec<D> move) const {
    return hn::Add(hn::Mul(weight, hn::Set(d, decay)), move);
  }
};

void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  update_as<Formula>(form, span, step);
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(update);

void lion(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  HWY_DYNAMIC_DISPATCH(update)(form, span, step);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
