// AdamW: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", ICLR 2019 (arXiv 1711.05101). Equal to
// torch.optim.AdamW(fused=True) on the CPU, bit for bit.
#pragma once

#include "spillway/base/on_device.h"
#include "spillway/kernels/adam_factors.h"

namespace spillway::kernels {

struct AdamW : AdamFactors {
  static constexpr auto kOptimizer = Optimizer::adamw;

  float decay;  ///< 1 - learning rate * weight decay

  AdamW(const UpdateStep& s, Moments form)
      : AdamFactors(s, form), decay(static_cast<float>(1 - s.learning_rate * s.weight_decay)) {}

  /// One element: the new moments in place, the new weight as result.
  [[nodiscard]] SPILLWAY_ON_DEVICE float scalar(float weight, float grad, float& exp_avg, float& exp_avg_sq) const {
    const float change = scalar_change(grad, exp_avg, exp_avg_sq);
    return exact ? weight * decay + change : std::fma(weight, decay, change);
  }
};

void adamw(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);

}  // namespace spillway::kernels
