#include "spillway/execute/nodes.h"

#include <algorithm>

namespace spillway::execute {
namespace {

NodeOptions option(const std::vector<NodeOptions>& options, std::size_t node) {
  return node < options.size() ? options[node] : NodeOptions{};
}

}  // namespace

std::vector<memory::ArenaPart> arena_parts(const plan::Plan& plan, const plan::Budget& budget,
                                           const std::vector<NodeOptions>& options) {
  std::vector<memory::ArenaPart> out;
  for (const auto& region : plan.regions) {
    if (option(options, region.node).pretended) continue;
    out.push_back({region.begin, region.end, static_cast<int>(budget.nodes[region.node].id)});
  }
  return out;
}

std::vector<UpdateLane> update_lanes(const plan::Budget& budget, const plan::Rates& rates,
                                     const std::vector<NodeOptions>& options) {
  if (budget.nodes.empty()) return {{.threads = std::max(1U, rates.update_cores)}};
  std::vector<UpdateLane> out;
  for (std::size_t n = 0; n < budget.nodes.size(); ++n) {
    const auto with = option(options, n);
    auto& lane = out.emplace_back();
    lane.threads = std::max(1U, n < rates.nodes.size() ? rates.nodes[n].threads : 1U);
    lane.limit = with.limit;
    if (!with.pretended) lane.near = static_cast<int>(budget.nodes[n].id);
  }
  return out;
}

}  // namespace spillway::execute
