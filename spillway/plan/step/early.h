// Updates that do not wait for the end of the step.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// True if the chunk may be updated before its step is decided, and there is room for its old version.
[[nodiscard]] bool is_early(const StepGraph& graph, Index c);

/// The updates of such chunks, behind the gradients that a pass makes.
void add_early_updates(StepGraph& graph, const GradientUse& use);

}  // namespace spillway::plan::step
