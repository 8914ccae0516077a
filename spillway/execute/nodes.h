// The memory nodes of a plan on this machine: which part of the arena is put where, and who updates it.
#pragma once

#include <vector>

#include "spillway/execute/executor.h"
#include "spillway/execute/node_options.h"
#include "spillway/memory/arena.h"
#include "spillway/plan/planner.h"

namespace spillway::execute {

/// By parts of the arena that lie on real nodes; empty: the kernel decides. `options`: as plan::Budget::nodes; fewer:
/// the rest have the default.
[[nodiscard]] std::vector<memory::ArenaPart> arena_parts(const plan::Plan& plan, const plan::Budget& budget,
                                                         const std::vector<NodeOptions>& options);

/// By node, each on the processors nearest to it; without nodes the one that updates everything.
[[nodiscard]] std::vector<UpdateLane> update_lanes(const plan::Budget& budget, const plan::Rates& rates,
                                                   const std::vector<NodeOptions>& options);

}  // namespace spillway::execute
