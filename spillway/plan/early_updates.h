// Which chunks are updated during backward.
#pragma once

#include "spillway/plan/fitting.h"

namespace spillway::plan {

/// Steps that take at most this part of another's time are worth what they cost: memory, and an update more where early
/// ones are put back.
inline constexpr double kWorthIt = 0.99;

/// Chunks that can be updated early, in the order in which their gradients are complete: the first have the most time.
[[nodiscard]] std::vector<Index> early_order(const state::Layout& layout, const LaidOut& laid_out);

/// The placement with early updates (ChunkPlacement::when) of the first so many of these chunks.
[[nodiscard]] Placement mark_early(Placement placement, const std::vector<Index>& order, std::size_t count);

/// True if chunks may be updated early. They may not if steps clip and nobody predicts the factor.
[[nodiscard]] bool has_open_early(const FittingProblem& problem);

/// Compares numbers of early updates. With Updates::early it takes as many as have room. Else it compares that many,
/// half of them and so on, until three in turn are no faster. None are compared if passes, paths or a link alone take
/// as long as the step.
void compare_early(const FittingProblem& problem, const Fitting& from, FittingComparison& comparison,
                   const FittingSearch& below);

}  // namespace spillway::plan
