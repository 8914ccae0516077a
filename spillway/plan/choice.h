// The search for the decisions of a plan: coordinate by coordinate over the axes, each a row of a table.
#pragma once

#include "spillway/plan/comparison.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// The best plan that `make` makes. Each axis that the budget leaves open is searched over its domain, beside the best
/// values of the axes before it; then, where several axes matter, around the values found, until no neighbour is
/// better. `agreed`: another rank has chosen all axes but the saved activations, and these are its decisions. Throws
/// Error(does_not_fit).
[[nodiscard]] Plan choose(const Problem& problem, const Comparison::Make& make, const Decisions* agreed = nullptr);

}  // namespace spillway::plan
