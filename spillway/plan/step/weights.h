// Weights on their way to the passes that read them: what forward, head and backward have in common.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// Adds the weights of one slice of a table, for its update and for the first pass that reads it. A window holds it
/// until that pass, and `until` at least.
void add_slice_forward(StepGraph& graph, Index block, Index slice, Index pass, std::uint32_t until = 0);

/// A window of its own for a pass that needs weights once more, filled at most `ahead` passes before it, and held
/// `until` that position at least.
void read_again(StepGraph& graph, Range chunks, Index pass, std::uint32_t ahead, std::uint32_t until = 0);

}  // namespace spillway::plan::step
