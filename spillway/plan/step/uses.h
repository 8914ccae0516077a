// Uses: what the passes and updates of a step need, of which objects, in their order. Nothing here knows where an
// object lives, by which hops it comes, or which process has it.
#pragma once

#include <vector>

#include "spillway/plan/step/order.h"

namespace spillway::plan::step {

/// An activation: the pass that makes it, the one that reads it at once and the one that it comes back for.
struct ActivationUse {
  Object what;
  Index made = kNone;
  Index read = kNone;    ///< kNone: nobody reads it before it comes back
  Index needed = kNone;  ///< kNone: it does not come back
  Operand as_made = Operand::output, as_read = Operand::input;
};
/// The input of each layer, and what autograd saves of each layer that spills.
[[nodiscard]] std::vector<ActivationUse> boundaries_of(const StepOrder& order);
[[nodiscard]] std::vector<ActivationUse> saved_of(const StepOrder& order, const SavedPlacement& saved);
/// Features of images, for an order in which the first layer has a backward pass.
[[nodiscard]] ActivationUse features_of(const StepOrder& order);
/// The output of the last layer, for the head or for the caller.
[[nodiscard]] ActivationUse last_boundary_of(const StepOrder& order);

/// An operand that passes add to or replace in one place, from the first to the last of them.
struct SharedUse {
  Operand as = Operand::converted;
  std::vector<Index> passes;  ///< in order; none: there is no such operand
};
/// The gradient of hidden states, and its fp32 sums over the slices of the head.
[[nodiscard]] SharedUse hidden_gradient_of(const StepOrder& order);
[[nodiscard]] SharedUse head_sums_of(const StepOrder& order);

/// Weights that passes read together: those of a layer, or one slice of a table. Their updates come before the first of
/// the passes.
struct WeightUse {
  std::vector<Range> objects;  ///< chunks that lie together; neighbours
  std::vector<Index> passes;
};
[[nodiscard]] std::vector<WeightUse> weights_of(const StepOrder& order, const state::Layout& layout);

/// Gradients that a pass makes for the updates of neighbours.
struct GradientUse {
  Range chunks;
  Index made = kNone;
};
[[nodiscard]] std::vector<GradientUse> gradients_of(const StepOrder& order, const state::Layout& layout);

}  // namespace spillway::plan::step
