#include "spillway/execute/nodes.h"

#include <algorithm>
#include <utility>

#include "spillway/plan/memory_breakdown.h"

namespace spillway::execute {
namespace {

NodeOptions option(const std::vector<NodeOptions>& options, std::size_t node) {
  return node < options.size() ? options[node] : NodeOptions{};
}

memory::Backing backing(const plan::Budget& budget, const std::vector<NodeOptions>& options, std::size_t node) {
  return option(options, node).backing.value_or(memory::on_node(static_cast<int>(budget.nodes[node].id)));
}

/// Which chunks lie where they should.
class Whereabouts {
 public:
  Whereabouts(const plan::Plan& plan, std::span<const std::byte> arena, std::vector<memory::ArenaPart> parts)
      : plan_(plan), arena_(arena), parts_(std::move(parts)), held_(memory::held(arena_, parts_)) {}

  [[nodiscard]] std::vector<memory::Held> by_node(std::size_t nodes) const {
    std::vector<memory::Held> out(nodes);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      auto& node = out[plan_.regions[p].node];
      node.there += held_[p].there;
      node.in_memory += held_[p].in_memory;
    }
    return out;
  }

  /// True if all of a range is on that tier; called only if its region is not there as a whole.
  [[nodiscard]] bool there(Bytes begin, Bytes bytes, std::size_t node, const memory::Backing& backing) const {
    const auto above = std::ranges::upper_bound(plan_.regions, begin, {}, &plan::Region::begin);
    if (above != plan_.regions.begin()) {
      const auto region = above - 1;
      const auto p = static_cast<std::size_t>(region - plan_.regions.begin());
      const bool inside = region->node == node && begin + bytes <= region->end;
      if (inside && held_[p].there == region->bytes()) return true;
    }
    return memory::held(arena_, {{begin, begin + bytes, backing}}).front().there == bytes;
  }

 private:
  const plan::Plan& plan_;
  const std::span<const std::byte> arena_;
  const std::vector<memory::ArenaPart> parts_;  ///< as the plan's regions
  const std::vector<memory::Held> held_;
};

}  // namespace

std::vector<memory::ArenaPart> arena_parts(const plan::Plan& plan, const plan::Budget& budget,
                                           const std::vector<NodeOptions>& options) {
  std::vector<memory::ArenaPart> out;
  out.reserve(plan.regions.size());
  for (const auto& region : plan.regions) {
    out.push_back({region.begin, region.end, backing(budget, options, region.node)});
  }
  return out;
}

std::vector<UpdateLane> update_lanes(const plan::Budget& budget, const plan::Rates& rates,
                                     const std::vector<NodeOptions>& options) {
  std::vector<UpdateLane> out;
  for (std::size_t n = 0; n < budget.nodes.size(); ++n) {
    auto& lane = out.emplace_back();
    lane.threads = std::max(1U, n < rates.nodes.size() ? rates.nodes[n].threads : 1U);
    lane.limit = option(options, n).limit;
    lane.near = backing(budget, options, n).near();
  }
  return out;
}

UpdateCores cores_of(const RunPlan& plan) {
  return {.own = plan.rates.update_cores,
          .shared = plan.rates.cores,
          .nodes = update_lanes(plan.budget, plan.rates, plan.nodes),
          .spare_caller = plan.plan.placement.device && gpu_of(plan.device.name).has_value()};
}

OnNodes on_nodes(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                 const plan::Budget& budget, const std::vector<NodeOptions>& options,
                 std::span<const std::byte> arena) {
  const Whereabouts found(plan, arena, arena_parts(plan, budget, options));
  OnNodes out{.held = found.by_node(budget.nodes.size()), .elsewhere = {}};
  if (budget.nodes.empty()) return out;
  const auto& schedule = plan.schedule;
  for (const auto& buffer : schedule.buffers) {
    if (buffer.node == 0) continue;
    auto& counted = out.aside[plan::name_of(buffer.kind)];
    const auto is_of = backing(budget, options, buffer.node);
    ++counted.buffers;
    counted.elsewhere += found.there(buffer.offset, buffer.bytes, buffer.node, is_of) ? 0 : 1;
  }
  const auto& placement = plan.placement;
  for (std::size_t c = 0; c < placement.chunks.size(); ++c) {
    if (placement[c].device_resident() || !schedule.groups[c].weight.any()) continue;  // or another process has it
    const auto& chunk = layout.chunks()[c];
    const auto node = placement[c].node();
    const auto& place = schedule.groups[c].weight;
    const auto weight = schedule.buffers[place.buffer].offset + place.offset;
    const auto state =
        schedule.resident_state[c] == plan::kNone ? 0 : schedule.buffers[schedule.resident_state[c]].offset;
    const auto weights = placement[c].weight.in_memory() ? weight_bytes(rule, chunk) : 0;
    const auto states = placement[c].state.in_memory() ? state_bytes(rule, chunk) : 0;
    const auto is_of = backing(budget, options, node);
    if (!found.there(weight, weights, node, is_of) || !found.there(state, states, node, is_of)) {
      out.elsewhere.push_back(c);
    }
  }
  return out;
}

}  // namespace spillway::execute
