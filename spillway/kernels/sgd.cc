#include "spillway/kernels/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/sgd.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

/// Sgd::scalar on vectors.
template <bool kExact>
struct Formula : Sgd {
  using Sgd::Sgd;

  static constexpr bool kReadsWeight = true;

  template <class D>
  HWY_INLINE Vec<D> prepare(D d, Vec<D> weight, Vec<D> grad, Vec<D>& momentum, Vec<D>& /*none*/) const {
    if (decays) grad = fused(d, weight, hn::Set(d, weight_decay), grad);
    return momentum = hn::Add(hn::Mul(momentum, hn::Set(d, factor)), grad);
  }
  template <class D>
  HWY_INLINE Vec<D> apply(D d, Vec<D> weight, Vec<D> momentum, Vec<D> /*prepared*/) const {
    return fused(d, momentum, hn::Set(d, minus_learning_rate), weight);
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

void sgd(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  HWY_DYNAMIC_DISPATCH(update)(form, span, step);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
