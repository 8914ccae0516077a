// A step's tasks as a timeline that opens in Perfetto (Chrome's trace event format).
#pragma once

#include <string>
#include <vector>

#include "spillway/execute/executor.h"
#include "spillway/plan/planner.h"

namespace spillway::execute {

/// "upload weight model.layers.3 chunk 12", "forward model.layers.7 0": the name of a task in a timeline.
[[nodiscard]] std::string describe_task(const plan::Plan& plan, const state::Layout& layout, const plan::Task& task);

/// True if a step of the plan may have tasks on the lane.
[[nodiscard]] bool has_lane(const plan::Plan& plan, plan::Lane lane);

/// Two processes: "measured" from `times` (empty: left out) and "predicted" from the plan's simulation. Each has its
/// tasks by lane, "measured" also the lane "passes on the device" beside the host's lane "compute", and the counter
/// "arena": bytes of DRAM in use by class of buffer, as the plan lays them out.
[[nodiscard]] std::string trace(const plan::Plan& plan, const state::Layout& layout, const std::vector<Times>& times);

}  // namespace spillway::execute
