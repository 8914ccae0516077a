// Uses: what the passes and updates of a step need, of which objects, in their order. Nothing here knows where an
// object lives, by which hops it comes, or which process has it.
#pragma once

#include <cstdint>
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
  Index changed_end = 0;  ///< end of the chunks of these that an update changes, in whichever process
};
[[nodiscard]] std::vector<WeightUse> weights_of(const StepOrder& order, const state::Layout& layout);

/// Gradients that a pass makes for the updates of neighbours.
struct GradientUse {
  Range chunks;
  Index made = kNone;
};
[[nodiscard]] std::vector<GradientUse> gradients_of(const StepOrder& order, const state::Layout& layout);

/// The sums of the embedding's rows, by every pass that multiplies by its table or looks rows up.
[[nodiscard]] SharedUse row_sums_of(const StepOrder& order);

/// An update with an object of its chunk.
enum class Access : std::uint8_t {
  read,    ///< it takes the object
  change,  ///< it changes the object, which goes back to its home
  add,     ///< it takes the object when it has put rows into it
  make,    ///< it makes the object of rows, for itself
};
struct UpdateUse {
  ObjectKind what = ObjectKind::chunk;
  Access access = Access::read;

  bool operator==(const UpdateUse&) const = default;
};
/// Objects that the update of a chunk needs where it runs.
[[nodiscard]] std::vector<UpdateUse> uses_of_update(const Description& description, const state::Layout& layout,
                                                    Index chunk);
[[nodiscard]] bool has_use(const std::vector<UpdateUse>& uses, ObjectKind what, Access access);

}  // namespace spillway::plan::step
