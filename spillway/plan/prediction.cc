#include "spillway/plan/prediction.h"

namespace spillway::plan {
namespace {

/// A backlog of writes may take some steps to show.
constexpr unsigned kSimulatedSteps = 8;

}  // namespace

Simulation predict(const Problem& problem, const Schedule& schedule) {
  const auto& paths = problem.budget.paths;
  return simulate(schedule, problem.description, problem.layout, problem.rates, kSimulatedSteps,
                  paths.size() == 1 ? paths[0].name : "paths");
}

}  // namespace spillway::plan
