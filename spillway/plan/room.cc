#include "spillway/plan/room.h"

#include <algorithm>

#include "spillway/plan/subspace_memory.h"

namespace spillway::plan {

Room room_of(const Problem& problem, Bytes device_arena) {
  const auto& budget = problem.budget;
  const bool in_dram = budget.device && budget.device->in_dram;
  Room out;
  const auto nodes = std::max<std::size_t>(1, budget.nodes.size());
  out.subspaces = subspace_bytes(problem.layout, nodes + (budget.device ? 1 : 0));
  out.update_workspace = nodes * update_workspace(problem.description.rule(), problem.layout);
  out.fixed =
      budget.process + budget.work + kEngineBytes + out.subspaces + out.update_workspace + (in_dram ? device_arena : 0);
  out.arena = budget.dram - std::min(budget.dram, out.fixed);
  for (const auto& node : budget.nodes) out.nodes.push_back(node.capacity);
  return out;
}

}  // namespace spillway::plan
