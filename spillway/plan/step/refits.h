// Background refits of reduced matrices, between the gradient that a pass has left and whoever reads it.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// A background refit that the pass has left for chunk c joins its gradient before any task reads the gradient. Each of
/// several processes may have to refit, and one without the chunk has no `grad`.
void add_refit(StepGraph& graph, Index c, Index pass, Place grad);

}  // namespace spillway::plan::step
