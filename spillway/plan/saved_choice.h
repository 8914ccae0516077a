// How many layers keep what autograd saves of them, instead of having backward compute it again.
#pragma once

#include <functional>
#include <string>

#include "spillway/plan/planner.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// A plan in which so many layers keep. Throws Error(does_not_fit).
using PlanKeeping = std::function<Plan(std::size_t layers)>;

/// The plan with as many as the budget asks; else of the plans in which none keeps, as many as have room, half of
/// these, and so on while that is faster, and some between the fastest and the next, the fastest. Throws
/// Error(does_not_fit) with what would fit, of which the numbers are those of plans that were made.
[[nodiscard]] Plan choose_keeping(const Problem& problem, const PlanKeeping& plan);

/// What was chosen and why, for people. `saved`: of the budget.
[[nodiscard]] std::string saved_words(const Plan& plan, const SavedActivations& saved);

}  // namespace spillway::plan
