// The one pass of every optimizer over every form. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_UPDATE_INL_H_
#undef SPILLWAY_KERNELS_UPDATE_INL_H_
#else
#define SPILLWAY_KERNELS_UPDATE_INL_H_
#endif

#include <cstring>

#include "spillway/kernels/moments-inl.h"
#include "spillway/kernels/moments.h"
#include "spillway/kernels/weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// What is left of a span behind its last whole tile, in a tile of its own: zeros follow.
class LastTile {
 public:
  LastTile(const UpdateForm& form, const UpdateSpan& span, std::size_t first)
      : form_(form), span_(span), first_(first), n_(span.n - first) {
    copy(true);
  }
  [[nodiscard]] UpdateSpan span() {
    UpdateSpan own = {
        .weight = weight_, .remainder = remainder_, .grad = grad_, .n = kTile, .index = span_.index + first_};
    for (std::size_t k = 0; k < span_.moments.size(); ++k) own.moments[k] = moments_[k], own.scales[k] = &scales_[k];
    return own;
  }
  void store() { copy(false); }

 private:
  void copy(bool in) {
    const auto move = [=, this](std::byte* own, std::byte* field, Bytes size) {
      if (field == nullptr) return;
      field += first_ * size;
      std::memcpy(in ? own : field, in ? field : own, n_ * size);
    };
    const auto& weights = traits(form_.weights);
    move(weight_, span_.weight, weights.bytes);
    move(remainder_, span_.remainder, weights.remainder);
    if (in) std::memcpy(grad_, span_.grad + first_ * weights.bytes, n_ * weights.bytes);
    for (std::size_t k = 0; k < span_.moments.size(); ++k) {
      move(moments_[k], span_.moments[k], traits(form_.moments).bytes);
      if (!traits(form_.moments).is_scaled || span_.scales[k] == nullptr) continue;
      float& scale = span_.scales[k][first_ / kTile];
      (in ? scales_[k] : scale) = in ? scale : scales_[k];
    }
  }

  static constexpr std::size_t kBytes = kTile * sizeof(float);
  const UpdateForm form_;
  const UpdateSpan span_;
  const std::size_t first_, n_;
  HWY_ALIGN std::byte weight_[kBytes] = {}, remainder_[kBytes] = {}, grad_[kBytes] = {}, moments_[2][kBytes] = {};
  float scales_[2] = {};
};

/// One vector of each field of an update.
template <class D>
struct FieldVectors {
  HWY_INLINE FieldVectors() {}  // an implicit constructor lacks the target of this file on 64-bit ARM
  Vec<D> weight, grad, first, second;
};

/// Formula<whether moments are exact>: an optimizer's constants, derived from its scalar struct, and the formula in two
/// parts. The moments in place (an optimizer with one leaves the second alone), and as result what apply() needs:
///   Vec<D> prepare(D d, Vec<D> weight, Vec<D> grad, Vec<D>& first, Vec<D>& second) const;
/// The new weight:
///   Vec<D> apply(D d, Vec<D> weight, Vec<D> first, Vec<D> prepared) const;
/// kReadsWeight: prepare() looks at the weight.
/// With two moments, one that is not a number must make the weight NaN: so one look at the weight is enough.
/// It goes by value, as all that the loops read: nothing that is stored can change it, so it stays in registers.
template <class Formula, class WeightsOf, class MomentsOf>
HWY_NOINLINE void pass(const UpdateSpan& span, const UpdateStep& step) {
  constexpr bool kTwo = Formula::kMoments == 2;
  const hn::ScalableTag<float> d;
  const Formula formula(step, MomentsOf::kForm);
  const auto gradient_scale = hn::Set(d, formula.gradient_scale);
  const WeightsOf weights(span);
  MomentsOf moments(span, step);
  for (std::size_t tile = 0; tile + kTile <= span.n; tile += kTile) {
    const auto fields = moments.open(tile);
    for (std::size_t i = 0; i < kTile; i += 2 * hn::Lanes(d)) {
      weights.prefetch_at(tile + i);
      fields.prefetch_at(i);
      FieldVectors<decltype(d)> even, odd;
      weights.load_pair(d, tile + i, even.weight, odd.weight);
      weights.load_gradients(d, tile + i, even.grad, odd.grad);
      fields.template load<0>(d, i, even.first, odd.first);
      if constexpr (kTwo) fields.template load<1>(d, i, even.second, odd.second);
      for (auto* at : {&even, &odd}) {
        const auto grad = hn::Mul(at->grad, gradient_scale);
        const auto prepared = formula.prepare(d, at->weight, grad, at->first, at->second);
        at->weight = formula.apply(d, at->weight, at->first, prepared);
      }
      bool nan = may_have_nan(d, even.weight, odd.weight);
      if constexpr (!kTwo) nan = nan || may_have_nan(d, even.first, odd.first);
      if (HWY_UNLIKELY(nan)) {
        for (auto* at : {&even, &odd}) {
          at->weight = quiet(d, at->weight), at->first = quiet(d, at->first);
          if constexpr (kTwo) at->second = quiet(d, at->second);
        }
      }
      fields.template store<0>(d, i, even.first, odd.first);
      if constexpr (kTwo) fields.template store<1>(d, i, even.second, odd.second);
      weights.store_pair(d, tile + i, even.weight, odd.weight);
    }
  }
}

/// The update where moments have scales, in two loops over each tile: square roots and random numbers are taken in the
/// first, divisions and codes in the second, so that in both the unit that divides and the others are busy.
template <class Formula, class WeightsOf, class MomentsOf>
HWY_NOINLINE void pass_with_scales(const UpdateSpan& span, const UpdateStep& step) {
  constexpr bool kTwo = Formula::kMoments == 2;
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const Formula formula(step, MomentsOf::kForm);
  const auto gradient_scale = hn::Set(d, formula.gradient_scale);
  const WeightsOf weights(span);
  const MomentsOf moments(span);
  const RandomKey key(step.seed, step.step);
  Random<kTile> random;
  struct Tile {
    HWY_ALIGN float first[kTile];
    HWY_ALIGN float second[kTile];
    HWY_ALIGN float prepared[kTile];
  } own;
  for (std::size_t tile = 0; tile + kTile <= span.n; tile += kTile) {
    const auto from = moments.open(tile);
    auto largest0 = MomentsOf::seen(), largest1 = MomentsOf::seen();
    auto numbers = random.begin(key, span.index + tile);
    for (std::size_t i = 0; i < kTile; i += 2 * lanes) {
      weights.prefetch_at(tile + i);
      from.prefetch_at(i);
      FieldVectors<decltype(d)> even, odd;
      if constexpr (Formula::kReadsWeight) weights.load_pair(d, tile + i, even.weight, odd.weight);
      weights.load_gradients(d, tile + i, even.grad, odd.grad);
      from.template load<0>(d, i, even.first, odd.first);
      if constexpr (kTwo) from.template load<1>(d, i, even.second, odd.second);
      std::size_t at = i;
      for (auto* half : {&even, &odd}) {
        const auto grad = hn::Mul(half->grad, gradient_scale);
        hn::Store(formula.prepare(d, half->weight, grad, half->first, half->second), d, own.prepared + at);
        hn::Store(half->first, d, own.first + at);
        if constexpr (kTwo) hn::Store(half->second, d, own.second + at);
        at += lanes;
      }
      from.template see<0>(d, even.first, odd.first, largest0);
      if constexpr (kTwo) from.template see<1>(d, even.second, odd.second, largest1);
      for (std::size_t k = i; k < i + 2 * lanes; k += random.kAtOnce) random.draw_at(numbers, k);
    }
    random.draw_at(numbers, kTile);
    const auto to = moments.close(tile, largest0, largest1);
    for (std::size_t i = 0; i < kTile; i += 2 * lanes) {
      FieldVectors<decltype(d)> even, odd;
      weights.load_pair(d, tile + i, even.weight, odd.weight);
      std::size_t at = i;
      for (auto* half : {&even, &odd}) {
        half->first = hn::Load(d, own.first + at);
        if constexpr (kTwo) half->second = hn::Load(d, own.second + at);
        half->weight = formula.apply(d, half->weight, half->first, hn::Load(d, own.prepared + at));
        at += lanes;
      }
      bool nan = may_have_nan(d, even.weight, odd.weight);
      if constexpr (!kTwo) nan = nan || may_have_nan(d, even.first, odd.first);
      if (HWY_UNLIKELY(nan)) {
        for (auto* half : {&even, &odd}) {
          half->weight = quiet(d, half->weight), half->first = quiet(d, half->first);
          if constexpr (kTwo) half->second = quiet(d, half->second);
        }
      }
      const auto chances = MomentsOf::chances(random.first + i);
      to.template store<0>(d, i, even.first, odd.first, chances);
      if constexpr (kTwo) to.template store<1>(d, i, even.second, odd.second, chances);
      weights.store_pair(d, tile + i, even.weight, odd.weight);
    }
  }
}

template <class Formula, class WeightsOf, class MomentsOf>
HWY_INLINE void pass_over(const UpdateSpan& span, const UpdateStep& step) {
  if constexpr (traits(MomentsOf::kForm).is_scaled) {
    pass_with_scales<Formula, WeightsOf, MomentsOf>(span, step);
  } else {
    pass<Formula, WeightsOf, MomentsOf>(span, step);
  }
}

template <class Formula, class WeightsOf, class MomentsOf>
void update_span(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  pass_over<Formula, WeightsOf, MomentsOf>(span, step);
  if (const std::size_t left = span.n % kTile; left > 0) {
    LastTile last(form, span, span.n - left);
    pass_over<Formula, WeightsOf, MomentsOf>(last.span(), step);
    last.store();
  }
}

template <template <bool> class Formula, class WeightsOf>
HWY_INLINE void update_moments(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  constexpr std::size_t count = Formula<true>::kMoments;
  switch (form.moments) {
    case Moments::exact:
      return update_span<Formula<true>, WeightsOf, Fp32Moments<count>>(form, span, step);
    case Moments::bf16:
      return update_span<Formula<false>, WeightsOf, Bf16Moments<count>>(form, span, step);
    case Moments::int8:
      return update_span<Formula<false>, WeightsOf, Int8Moments<count>>(form, span, step);
  }
}

template <template <bool> class Formula>
HWY_INLINE void update_as(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  switch (form.weights) {
    case Weights::bf16:
      return update_moments<Formula, SplitWeights>(form, span, step);
    case Weights::fp32:
      return update_moments<Formula, Fp32Weights>(form, span, step);
    case Weights::fp16:
      return update_moments<Formula, Fp16Weights>(form, span, step);
  }
}

#else

template <template <bool> class Formula>
void update_as(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  scalar::update(form, span, step);
}

#endif

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
