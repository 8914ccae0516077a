// The one pass of every optimizer over every form. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_UPDATE_INL_H_
#undef SPILLWAY_KERNELS_UPDATE_INL_H_
#else
#define SPILLWAY_KERNELS_UPDATE_INL_H_
#endif

#include "spillway/kernels/moments-inl.h"
#include "spillway/kernels/weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

/// Formula<whether moments are exact>: an optimizer's constants, derived from its scalar struct, and
///   Vec<D> operator()(D d, Vec<D> weight, Vec<D> grad, Vec<D>& first[, Vec<D>& second]) const.
/// With two moments, one that is not a number must make the weight NaN: so one look at the weight is enough.
/// It goes by value, as all that the loop reads: nothing that is stored can change it, so it stays in registers.
template <class Formula, class WeightsOf, class MomentsOf>
HWY_NOINLINE void pass(const UpdateSpan& span, const UpdateStep& step) {
  const Formula formula(step, MomentsOf::kForm);
  const WeightsOf weights(span);
  MomentsOf moments(span, step);
  for (std::size_t tile = 0; tile < span.n; tile += MomentsOf::kTile) {
    const std::size_t n = std::min(span.n - tile, MomentsOf::kTile);
    const auto fields = moments.open(tile, n);
    auto seen0 = MomentsOf::seen(), seen1 = MomentsOf::seen();
    for_each_vector<float>(n, [=, &seen0, &seen1](auto d, std::size_t i) HWY_ATTR {
      weights.prefetch_at(tile + i);
      fields.prefetch_at(i);
      auto weight = weights.load(d, tile + i);
      const auto grad = hn::Mul(weights.gradient(d, tile + i), hn::Set(d, formula.gradient_scale));
      auto first = fields.template load<0>(d, i), second = first;
      if constexpr (Formula::kMoments == 2) {
        second = fields.template load<1>(d, i);
        weight = formula(d, weight, grad, first, second);
      } else {
        weight = formula(d, weight, grad, first);
      }
      auto nan = hn::IsNaN(weight);
      if constexpr (Formula::kMoments == 1) nan = hn::Or(nan, hn::IsNaN(first));
      if (HWY_UNLIKELY(!hn::AllFalse(d, nan))) {
        weight = quiet(d, weight), first = quiet(d, first), second = quiet(d, second);
      }
      fields.template store<0>(d, i, first, seen0);
      if constexpr (Formula::kMoments == 2) fields.template store<1>(d, i, second, seen1);
      weights.store(d, tile + i, weight);
    });
    moments.close(tile, n, seen0, seen1);
  }
}

template <template <bool> class Formula, class WeightsOf>
HWY_INLINE void update_moments(Moments moments, const UpdateSpan& span, const UpdateStep& step) {
  constexpr std::size_t count = Formula<true>::kMoments;
  switch (moments) {
    case Moments::fp32:
      return pass<Formula<true>, WeightsOf, Fp32Moments<count>>(span, step);
    case Moments::bf16:
      return pass<Formula<false>, WeightsOf, Bf16Moments<count>>(span, step);
    case Moments::int8:
      return pass<Formula<false>, WeightsOf, Int8Moments<count>>(span, step);
  }
}

template <template <bool> class Formula>
HWY_INLINE void update_as(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  switch (form.weights) {
    case Weights::split:
      return update_moments<Formula, SplitWeights>(form.moments, span, step);
    case Weights::fp32:
      return update_moments<Formula, Fp32Weights>(form.moments, span, step);
    case Weights::fp16:
      return update_moments<Formula, Fp16Weights>(form.moments, span, step);
  }
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
