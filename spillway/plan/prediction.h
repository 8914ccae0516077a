// The steady step of a plan, simulated as the planner compares plans.
#pragma once

#include <string>

#include "spillway/plan/problem.h"
#include "spillway/plan/simulate.h"

namespace spillway::plan {

/// A schedule with the dependencies that shared bytes need.
[[nodiscard]] Simulation predict(const Problem& problem, const Schedule& schedule);
/// One that is laid out and lacks them.
[[nodiscard]] Simulation predict_laid_out(const Problem& problem, Schedule schedule);

}  // namespace spillway::plan
