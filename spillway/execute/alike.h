// Check that all processes of a run have made the same plan.
#pragma once

#include "spillway/execute/run_plan.h"

namespace spillway::execute {

/// Called by every process of a world, compares what their schedules send and receive, in which order. Throws
/// Error(bad_input) on each of them where any differs from that of rank 0.
void check_alike(const RunPlan& plan);

}  // namespace spillway::execute
