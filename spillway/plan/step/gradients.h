// Gradients from the passes that make them to the updates that take them.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// The gradient of `chunks` chunks from `first` on, made by `pass` in one buffer: where it stays or how it leaves, what
/// is left to refit of it, and updates that do not wait for the end of the step.
void add_gradient(StepGraph& graph, Index pass, Index first, std::size_t chunks);

/// Writes a gradient that stays in memory until its update, which is the next instance's. `from`: in a buffer that
/// whoever makes it fills; of a chunk whose gradient stays on a device: unknown yet.
Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline);

/// Staging for the gradient of chunk c around its update: read back from a path, or of a table whose gradient is a few
/// rows filled by the update.
void stage_gradient(StepGraph& graph, Index c);

}  // namespace spillway::plan::step
