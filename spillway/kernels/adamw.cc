#include "spillway/kernels/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/adamw.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/adam-inl.h"
#include "spillway/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

/// AdamW::scalar on vectors.
template <bool kExact>
struct Formula : AdamW {
  using AdamW::AdamW;

  static constexpr bool kReadsWeight = false;

  template <class D>
  HWY_INLINE Vec<D> prepare(D d, Vec<D> /*weight*/, Vec<D> grad, Vec<D>& exp_avg, Vec<D>& exp_avg_sq) const {
    return adam_denominator<kExact>(d, *this, grad, exp_avg, exp_avg_sq);
  }
  template <class D>
  HWY_INLINE Vec<D> apply(D d, Vec<D> weight, Vec<D> exp_avg, Vec<D> denominator) const {
    const auto change = adam_change(d, *this, exp_avg, denominator), kept = hn::Set(d, decay);
    return kExact ? hn::Add(hn::Mul(weight, kept), change) : fused(d, weight, kept, change);
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

void adamw(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  HWY_DYNAMIC_DISPATCH(update)(form, span, step);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
