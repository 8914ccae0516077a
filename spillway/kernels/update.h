// The update of one span of a chunk: gradient, weight and moments in, weight and moments out, in one pass.
//
// What is applied (`UpdateStep`), in what form the state lies (`UpdateForm`) and where (`UpdateSpan`) are told apart,
// so that any optimizer works on any form. Formulas and their order are PyTorch's; each optimizer's own file names its
// source. Every instruction set gives the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "spillway/kernels/element.h"

namespace spillway::kernels {

enum class Optimizer : std::uint8_t {
  adamw,  ///< two moments; decoupled weight decay
  adam,   ///< two moments; weight decay is added to the gradient
  lion,   ///< one moment; the sign of an interpolation, decoupled weight decay
  sgd,    ///< one moment, of factor beta1; weight decay is added to the gradient
};

[[nodiscard]] constexpr std::size_t moment_count(Optimizer optimizer) noexcept {
  return optimizer == Optimizer::adamw || optimizer == Optimizer::adam ? 2 : 1;
}

/// How weights and gradients lie: both of bf16, with a remainder of the 16 bits that make the weight the fp32 master;
/// both of fp16, with a remainder that is the fp32 master; or both of fp32, without one.
using Weights = Element;

/// How moments lie, what takes most bytes first; what is asked of a format is a column of moments.h.
enum class Moments : std::uint8_t {
  exact,  ///< fp32
  bf16,   ///< rounded stochastically, by UpdateStep::seed, UpdateStep::step and the element's index
  int8,   ///< 8-bit codes and an fp32 scale for every kQuantBlock elements (code8.h); rounded as bf16 is
};

struct UpdateForm {
  Weights weights = Weights::bf16;
  Moments moments = Moments::exact;
  friend bool operator==(const UpdateForm&, const UpdateForm&) = default;
};

/// Elements that share a scale: blocks are counted from the span's first element, so a span starts where a block does.
inline constexpr std::size_t kQuantBlock = 256;

/// What one optimizer step applies to every element; plain data, part of the step's record.
struct UpdateStep {
  Optimizer optimizer = Optimizer::adamw;
  double learning_rate = 0;  ///< of this step, >= 0
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;   ///< pass 0 for tensors that do not decay
  float gradient_scale = 1;  ///< the gradient is multiplied by this first: clip factor, loss scale undone
  std::int64_t step = 1;     ///< counted from 1
  std::uint64_t seed = 0;    ///< of the run: for stochastic rounding
  friend bool operator==(const UpdateStep&, const UpdateStep&) = default;
};

/// All arrays hold `n` elements (scales: one per started block), any alignment, no overlap. n may be 0.
struct UpdateSpan {
  std::byte* weight = nullptr;
  std::byte* remainder = nullptr;
  std::array<std::byte*, 2> moments = {};  ///< exp_avg (sgd: the momentum), exp_avg_sq
  std::array<float*, 2> scales = {};       ///< int8 only
  const std::byte* grad = nullptr;
  std::size_t n = 0;
  std::uint64_t index = 0;  ///< of the first element, unique in the run: what random numbers are drawn for
};

void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);

namespace scalar {  // the slow, obvious reference: same results, bit for bit
void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step);
}  // namespace scalar

}  // namespace spillway::kernels
