// What Adam and AdamW share: the constants of one step, computed in double and rounded once to float, as PyTorch's
// fused kernel does, and the step of one element (PyTorch, aten/native/cpu/FusedAdamKernel.cpp).
#pragma once

#include <cmath>
#include <cstddef>

#include "spillway/base/on_device.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels {

struct AdamFactors {
  static constexpr std::size_t kMoments = 2;

  float gradient_scale;    ///< multiplies the gradient first
  float lerp_weight;       ///< of (gradient - exp_avg) in the new exp_avg
  bool lerp_from_grad;     ///< beta1 <= 0.5: PyTorch's lerp starts from the gradient then
  float beta2;             ///<
  float square_weight;     ///< 1 - beta2
  float bias2_root;        ///< sqrt(1 - beta2^step), in [0, 1]
  float bias2_reciprocal;  ///< 1 / bias2_root, correctly rounded; inf when that is 0
  float epsilon;           ///<
  float minus_step_size;   ///< -learning rate / (1 - beta1^step)
  bool exact;  ///< operations as in PyTorch; moments with less than 32 bits: fewer, rounded as well or better

  AdamFactors(const UpdateStep& s, Moments moments)
      : gradient_scale(s.gradient_scale),
        lerp_weight(static_cast<float>(1 - s.beta1)),
        lerp_from_grad(!(std::abs(lerp_weight) < 0.5f)),
        beta2(static_cast<float>(s.beta2)),
        square_weight(static_cast<float>(1 - s.beta2)),
        bias2_root(static_cast<float>(std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step))))),
        bias2_reciprocal(1.0f / bias2_root),
        epsilon(static_cast<float>(s.epsilon)),
        minus_step_size(static_cast<float>(-(s.learning_rate / (1 - std::pow(s.beta1, static_cast<double>(s.step)))))),
        exact(moments == Moments::exact) {
    if (lerp_from_grad) lerp_weight -= 1.0f;
  }

  /// Moments of one element in place; what its weight changes by, weight decay aside. Fused where it says so and
  /// nowhere else.
  [[nodiscard]] SPILLWAY_ON_DEVICE float scalar_change(float grad, float& exp_avg, float& exp_avg_sq) const {
    exp_avg = std::fma(lerp_weight, grad - exp_avg, lerp_from_grad ? grad : exp_avg);
    exp_avg_sq = std::fma(square_weight * grad, grad, beta2 * exp_avg_sq);
    const float root = std::sqrt(exp_avg_sq);
    const float denominator = exact ? root / bias2_root + epsilon : std::fma(root, bias2_reciprocal, epsilon);
    return minus_step_size * exp_avg / denominator;
  }
};

}  // namespace spillway::kernels
