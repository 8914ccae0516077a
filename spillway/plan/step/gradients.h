// Parts of a gradient's way that have a file each: fp32 sums for other processes, and copies of a durable step.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// The home of the gradients that a pass makes for chunks of this process. Without any it is of no matter.
[[nodiscard]] const Residence& home_of(const StepGraph& graph, const GradientUse& use);

/// Bytes of a chunk's gradient in this process; 0 where another has the chunk.
[[nodiscard]] Bytes count_gradient_bytes(const StepGraph& graph, Index c);

/// True if the update of a chunk takes zeros as its gradient where no pass has asked for the weights: no token has met
/// them. Other processes and durable steps get all gradients.
[[nodiscard]] bool may_be_left(const StepGraph& graph, Index c);

/// `task` writes the gradient of chunk c to a path, once it is complete.
void write_gradient(StepGraph& graph, Index c, Index task);

/// The fp32 sums of the gradients that a pass makes, and the place from which others are sent them.
void add_gradient_sums(StepGraph& graph, const GradientUse& use);

/// A durable step has a copy of gradients that stay in memory.
void log_gradients(StepGraph& graph, const GradientUse& use);

/// Writes a gradient that stays in memory until its update, which is the next instance's, from `from`.
Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline);

}  // namespace spillway::plan::step
