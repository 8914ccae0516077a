// The steady step of a plan, simulated as the planner compares plans.
#pragma once

#include "spillway/plan/problem.h"
#include "spillway/plan/simulate.h"

namespace spillway::plan {

/// `schedule` has the dependencies that shared bytes need (add_reuse_dependencies()).
[[nodiscard]] Simulation predict(const Problem& problem, const Schedule& schedule);

}  // namespace spillway::plan
