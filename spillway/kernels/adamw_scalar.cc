#include <bit>
#include <cmath>

#include "spillway/kernels/adamw.h"
#include "spillway/kernels/adamw_factors.h"
#include "spillway/kernels/bf16.h"

namespace spillway::kernels::scalar {
namespace {

std::uint32_t join_bits(std::uint16_t weight, std::uint16_t residual) {
  const auto high = static_cast<std::uint16_t>(weight - (residual >> 15));
  return static_cast<std::uint32_t>(high) << 16 | residual;
}

void split_bits(std::uint32_t bits, std::uint16_t& weight, std::uint16_t& residual) {
  weight = static_cast<std::uint16_t>((bits + 0x8000) >> 16);
  residual = static_cast<std::uint16_t>(bits);
}

/// One element; returns the new weight. A multiply-add is fused where it says so and nowhere else.
float update(float weight, float grad, float& exp_avg, float& exp_avg_sq, const AdamWFactors& f) {
  grad *= f.gradient_scale;
  weight *= f.decay;
  const float m = std::fma(f.lerp_weight, grad - exp_avg, f.lerp_from_grad ? grad : exp_avg);
  const float v = std::fma(f.square_weight * grad, grad, f.beta2 * exp_avg_sq);
  const float denominator = std::sqrt(v) / f.bias2_root + f.epsilon;
  exp_avg = quiet(m);
  exp_avg_sq = quiet(v);
  return quiet(weight + f.minus_step_size * m / denominator);
}

}  // namespace

void adamw_exact(std::uint16_t* weight, std::uint16_t* residual, float* exp_avg, float* exp_avg_sq,
                 const std::uint16_t* grad, std::size_t n, const UpdateStep& step) {
  const AdamWFactors factors(step);
  for (std::size_t i = 0; i < n; ++i) {
    const float master = std::bit_cast<float>(join_bits(weight[i], residual[i]));
    const float next = update(master, kernels::widen(grad[i]), exp_avg[i], exp_avg_sq[i], factors);
    split_bits(std::bit_cast<std::uint32_t>(next), weight[i], residual[i]);
  }
}

void adamw_fp32(float* weight, float* exp_avg, float* exp_avg_sq, const float* grad, std::size_t n,
                const UpdateStep& step) {
  const AdamWFactors factors(step);
  for (std::size_t i = 0; i < n; ++i) weight[i] = update(weight[i], grad[i], exp_avg[i], exp_avg_sq[i], factors);
}

// Integers all the way: a float register would be allowed to change a signalling NaN.
void split(const float* master, std::uint16_t* weight, std::uint16_t* residual, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) split_bits(std::bit_cast<std::uint32_t>(master[i]), weight[i], residual[i]);
}

void join(const std::uint16_t* weight, const std::uint16_t* residual, float* master, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) master[i] = std::bit_cast<float>(join_bits(weight[i], residual[i]));
}

}  // namespace spillway::kernels::scalar
