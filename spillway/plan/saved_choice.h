// How many layers keep or spill what autograd saves of them, instead of having backward compute it again.
#pragma once

#include <functional>
#include <string>

#include "spillway/plan/planner.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// A plan in which so many layers keep and spill. Throws Error(does_not_fit).
using PlanSaving = std::function<Plan(SavedLayers layers)>;

/// The plan with as many as the budget asks: all of them keep, or where layers may spill as many do as make the step
/// fastest. Else of the plans in which none keeps, as many as have room, and where these or a single one are faster,
/// half of them, and so on while that is faster, and some between the fastest and the next, the fastest; and where
/// layers may spill, of those in which as many do beside it, and beside none, as the paths have time for. Nothing goes
/// to a path where all else has room in memory, unless the budget says what steps survive. Throws Error(does_not_fit)
/// with what would fit, of which the numbers are those of plans that were made.
[[nodiscard]] Plan choose_saving(const Problem& problem, const PlanSaving& plan);

/// What was chosen and why, for people. `saved`: of the budget.
[[nodiscard]] std::string saved_words(const Plan& plan, const SavedActivations& saved);

}  // namespace spillway::plan
