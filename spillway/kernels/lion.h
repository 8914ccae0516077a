// Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023 (arXiv 2302.06675), Algorithm 2.
// Rounded as the authors' program does in PyTorch (github.com/google/automl, lion/lion_pytorch.py), bit for bit.
#pragma once

#include <cmath>
#include <cstddef>

#include "spillway/kernels/update.h"

namespace spillway::kernels {

struct Lion {
  static constexpr std::size_t kMoments = 1;

  float gradient_scale;  ///< multiplies the gradient first
  float decay;           ///< 1 - learning rate * weight decay
  float beta1, grad1;    ///< of the old moment and the gradient in the direction
  float beta2, grad2;    ///< of the old moment and the gradient in the new moment
  float learning_rate;   ///<

  Lion(const UpdateStep& s, Moments /*form*/)
      : gradient_scale(s.gradient_scale),
        decay(static_cast<float>(1 - s.learning_rate * s.weight_decay)),
        beta1(static_cast<float>(s.beta1)),
        grad1(static_cast<float>(1 - s.beta1)),
        beta2(static_cast<float>(s.beta2)),
        grad2(static_cast<float>(1 - s.beta2)),
        learning_rate(static_cast<float>(s.learning_rate)) {}

  /// One element: the new moment in place, the new weight as result. A direction of 0 moves nothing.
  [[nodiscard]] float scalar(float weight, float grad, float& exp_avg) const {
    const float direction = exp_avg * beta1 + grad * grad1;
    exp_avg = std::fma(grad, grad2, exp_avg * beta2);
    const float move = direction > 0    ? -learning_rate
                       : direction < 0  ? learning_rate
                       : direction == 0 ? -0.0f
                                        : direction;
    return weight * decay + move;
  }
};

void lion(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);

}  // namespace spillway::kernels
