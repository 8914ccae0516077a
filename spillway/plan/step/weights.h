// Weights on their way to the passes that read them: what forward, head and backward have in common.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// Adds the weights of one slice of a table, for its update and for the first pass that reads it. A window holds it
/// until that pass, and `until` at least.
void add_slice_forward(StepGraph& graph, Index block, Index slice, Index pass, std::uint32_t until = 0);

/// Reads the weight of chunk c into a buffer for a pass that does not update it.
Index add_pass_read(StepGraph& graph, Index c, Place to, Index pass);

}  // namespace spillway::plan::step
