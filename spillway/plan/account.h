// Totals of a plan: bytes by tier and class, the predicted step, and the shares of durability, remote drives and early
// updates.
#pragma once

#include "spillway/plan/planner.h"
#include "spillway/plan/room.h"

namespace spillway::plan {

/// Reserves the volumes. Throws Error(does_not_fit) where paths or file systems are too small.
void account_for_paths(const Problem& problem, Plan& plan);

/// Fills in the rest of a plan whose placement is laid out: `schedule` is given the dependencies that shared bytes
/// need, DRAM that is left keeps logits, and what it takes in all is told.
void account_for_step(const Problem& problem, const Room& room, Plan& plan);

/// Then, what durability, remote drives and early updates are of that, and who holds the memory. Of two plans nobody
/// needs it to choose the better one.
void account_for_parts(const Problem& problem, Plan& plan);

}  // namespace spillway::plan
