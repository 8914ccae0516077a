// Adam: Kingma & Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015 (arXiv 1412.6980); weight decay is added
// to the gradient. Equal to torch.optim.Adam(fused=True) on the CPU, bit for bit.
#pragma once

#include "spillway/kernels/adam_factors.h"

namespace spillway::kernels {

struct Adam : AdamFactors {
  float weight_decay;  ///<
  bool decays;         ///< weight decay is not 0; a product with 0 would turn infinite weights into NaN

  Adam(const UpdateStep& s, Moments form)
      : AdamFactors(s, form), weight_decay(static_cast<float>(s.weight_decay)), decays(s.weight_decay != 0) {}

  /// One element: the new moments in place, the new weight as result.
  [[nodiscard]] float scalar(float weight, float grad, float& exp_avg, float& exp_avg_sq) const {
    return weight + scalar_change(decays ? std::fma(weight, weight_decay, grad) : grad, exp_avg, exp_avg_sq);
  }
};

void adam(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);

}  // namespace spillway::kernels
