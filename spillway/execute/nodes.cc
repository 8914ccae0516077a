#include "spillway/execute/nodes.h"

#include <algorithm>

#include "spillway/memory/pages.h"

namespace spillway::execute {
namespace {

NodeOptions option(const std::vector<NodeOptions>& options, std::size_t node) {
  return node < options.size() ? options[node] : NodeOptions{};
}

/// Bytes of the range on node `id`.
Bytes bytes_on(std::span<const std::byte> range, unsigned id) {
  Bytes out = 0;
  for (const auto& part : memory::where(range)) out += part.node == static_cast<int>(id) ? part.bytes : 0;
  return out;
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

OnNodes on_nodes(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                 const plan::Budget& budget, const std::vector<NodeOptions>& options,
                 std::span<const std::byte> arena) {
  OnNodes out{.bytes = std::vector<Bytes>(budget.nodes.size(), 0), .elsewhere = {}};
  const auto lies = [&](Bytes begin, Bytes bytes, std::size_t node) {
    if (option(options, node).pretended) return bytes;
    return bytes_on(arena.subspan(begin, bytes), budget.nodes[node].id);
  };
  for (const auto& region : plan.regions) out.bytes[region.node] += lies(region.begin, region.bytes(), region.node);
  if (budget.nodes.empty()) return out;
  const auto& schedule = plan.schedule;
  const auto& residency = plan.residency;
  for (std::size_t c = 0; c < residency.chunks.size(); ++c) {
    if (residency[c].device_resident()) continue;
    const auto& chunk = layout.chunks()[c];
    const auto node = residency[c].node();
    const auto& place = schedule.groups[c].weight;
    const auto weight = schedule.buffers[place.buffer].offset + place.offset;
    const auto state =
        schedule.resident_state[c] == plan::kNone ? 0 : schedule.buffers[schedule.resident_state[c]].offset;
    const auto weights = residency[c].weight.in_memory() ? weight_bytes(rule, chunk) : 0;
    const auto states = residency[c].state.in_memory() ? state_bytes(rule, chunk) : 0;
    if (lies(weight, weights, node) != weights || lies(state, states, node) != states) out.elsewhere.push_back(c);
  }
  return out;
}

}  // namespace spillway::execute
