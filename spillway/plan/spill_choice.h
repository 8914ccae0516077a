// How many layers send what autograd saves of them to a path, instead of having backward compute it again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/plan/planner.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Seconds of a step that spilling one layer takes and saves. All 0 if none can spill.
[[nodiscard]] SpillCost spill_cost(const Problem& problem);

/// True if layers may spill: they can, the budget lets them, there is a path, and PyTorch's memory is the host's.
[[nodiscard]] bool can_spill(const Budget& budget);

/// True if layers may spill to host memory. The conditions are the same without a path: to a later tier, or from a
/// device with memory of its own to any.
[[nodiscard]] bool can_lie_aside(const Budget& budget);

/// Tiers that layers may spill to.
[[nodiscard]] std::vector<TierId> homes_of_spilled(const Budget& budget);

/// How many of so many layers are worth trying first, by what the paths have left beside `plan`: as many as make them
/// busy for all of a step. 0: a step would not be shorter with any.
[[nodiscard]] std::size_t worth_spilling(const SpillCost& cost, const Simulation& plan, std::size_t layers);

/// Numbers of layers to compare, ascending, where `layers` are not to recompute and as many as have room are to keep.
[[nodiscard]] std::vector<std::size_t> shares_to_spill(std::size_t layers);

/// Cost and savings of spilling, and why none spills if none can, for people; empty if nobody asked.
[[nodiscard]] std::string spill_words(const Plan& plan, const Budget& budget);

}  // namespace spillway::plan
