// Which chunks are updated during backward.
#pragma once

#include "spillway/plan/trial.h"

namespace spillway::plan {

/// Steps that take at most this part of another's time are worth what they cost: memory, and an update more where early
/// ones are put back.
inline constexpr double kWorthIt = 0.99;

/// Chunks that can be updated early, in the order in which their gradients are complete: the first have the most time.
[[nodiscard]] std::vector<Index> early_order(const state::Layout& layout, const LaidOut& laid_out);

/// Makes early (ChunkPlacement::when) the updates of as many chunks as have room: with Updates::early all of these,
/// else of that many, half of them and so on, until three in turn are no faster, the fastest, or none where that is not
/// worth it, as where passes, paths or a link alone take as long as the step. None either where steps
/// clip and nobody predicts the factor. Returns the seconds of a step that this saves; `trial` has laid `placement`
/// out, and has the result laid out then.
double choose_early(const Problem& problem, Trial& trial, Placement& placement, const Lookahead& lookahead);

}  // namespace spillway::plan
