// The search for the decisions of a plan: coordinate by coordinate over the axes, each a row of a table.
#pragma once

#include <span>

#include "spillway/plan/comparison.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Axes whose values are not searched, and their values. Other values of `decisions` begin the search.
struct Given {
  Decisions decisions = {};
  Axes axes = {};
};

/// The axes of the outer decisions, in the order of the search.
[[nodiscard]] std::span<const DecisionSearch::Row> decision_rows() noexcept;

/// The best plan that `make` makes. Each axis that the budget leaves open is searched over its domain, beside the best
/// values of the axes before it; then, where several axes matter, around the values found, until no neighbour is
/// better. Throws Error(does_not_fit).
[[nodiscard]] Plan choose(const Problem& problem, const Comparison::Make& make, const Given& given = {});

}  // namespace spillway::plan
