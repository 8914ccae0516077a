#include "spillway/plan/room.h"

#include <algorithm>

#include "spillway/plan/auxiliary_memory.h"
#include "spillway/plan/piece_staging.h"

namespace spillway::plan {
namespace {

/// Capacities by tier. Beside files, the tiers that are no file have the budget together, the first before the others.
/// The sum of all bounds the arena.
std::vector<Bytes> capacities(const Budget& budget) {
  const bool files = !std::ranges::all_of(budget.nodes, [](const auto& node) { return traits(node.kind).in_dram; });
  std::vector<Bytes> out;
  auto left = budget.dram;
  for (const auto& node : budget.nodes) {
    const auto& kind = traits(node.kind);
    const auto asked = kind.is_rest ? left : node.capacity;
    out.push_back(files && kind.in_dram ? std::min(asked, left) : asked);
    if (kind.in_dram) left -= std::min(left, out.back());
  }
  return out;
}

}  // namespace

Room room_of(const Problem& problem, Bytes device_arena) {
  const auto& budget = problem.budget;
  const bool in_dram = budget.device && budget.device->in_dram;
  Room out;
  const auto nodes = std::max<std::size_t>(1, budget.nodes.size());
  out.auxiliary = auxiliary_bytes(problem.layout, nodes + (budget.device ? 1 : 0), problem.description.sample_sums());
  out.update_workspace = nodes * update_workspace(problem.description.rule(), problem.layout);
  if (budget.has_path() || budget.device) {  // else all pieces lie alike
    out.piece_staging = piece_staging(problem.description, problem.layout).bytes();
  }
  out.fixed = budget.process + problem.work() + kEngineBytes + out.auxiliary + out.update_workspace +
              out.piece_staging + (in_dram ? device_arena : 0);
  out.arena = budget.dram - std::min(budget.dram, out.fixed);
  out.nodes = capacities(budget);
  for (const auto& node : budget.nodes) out.arena += traits(node.kind).in_dram ? 0 : node.capacity;
  return out;
}

}  // namespace spillway::plan
