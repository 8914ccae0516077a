// Weights from the processes that have their chunks, and gradients to them.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// The weights of a pass that other processes have, to the window or to the copy that stays here. Sends this process's
/// own once they are updated. Returns the last of its tasks; kNone: each process has all of them.
[[nodiscard]] Index add_gather(StepGraph& graph, Index pass);

/// The tasks that bring the sums of a pass's gradients to the owners of their chunks, and where the sums of others
/// arrive. Gradients are complete with the last of them. In a world of one process it adds nothing.
void add_scatter(StepGraph& graph, Index pass, Range chunks);

/// Does for rows of the embedding what add_scatter() does for other gradients. Returns the task with which the rows are
/// complete; in a world of one process that is the last of the passes.
Index add_row_scatter(StepGraph& graph, const SharedUse& use);

}  // namespace spillway::plan::step
