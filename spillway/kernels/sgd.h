// SGD with momentum: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013;
// weight decay is added to the gradient. Equal to torch.optim.SGD(momentum=beta1, fused=True) on the CPU, bit for bit
// (dampening 0, no Nesterov; PyTorch, aten/native/cpu/FusedSGDKernel.cpp). A first momentum of -0 comes out as +0.
#pragma once

#include <cmath>
#include <cstddef>

#include "spillway/kernels/update.h"

namespace spillway::kernels {

struct Sgd {
  static constexpr std::size_t kMoments = 1;

  float gradient_scale;       ///< multiplies the gradient first
  float weight_decay;         ///<
  bool decays;                ///< weight decay is not 0; a product with 0 would turn infinite weights into NaN
  float factor;               ///< of the old momentum
  float minus_learning_rate;  ///<

  Sgd(const UpdateStep& s, Moments /*form*/)
      : gradient_scale(s.gradient_scale),
        weight_decay(static_cast<float>(s.weight_decay)),
        decays(s.weight_decay != 0),
        factor(static_cast<float>(s.beta1)),
        minus_learning_rate(static_cast<float>(-s.learning_rate)) {}

  /// One element: the new momentum in place, the new weight as result.
  [[nodiscard]] float scalar(float weight, float grad, float& momentum) const {
    if (decays) grad = std::fma(weight, weight_decay, grad);
    momentum = momentum * factor + grad;
    return std::fma(momentum, minus_learning_rate, weight);
  }
};

void sgd(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);

}  // namespace spillway::kernels
