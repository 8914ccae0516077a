// Facts that follow from a planned run alone.
#pragma once

#include <cstdint>
#include <vector>

#include "spillway/execute/device_options.h"
#include "spillway/execute/node_options.h"
#include "spillway/network/port.h"
#include "spillway/plan/planner.h"
#include "spillway/state/ownership.h"

namespace spillway::execute {

/// Outlives everything made of it.
struct RunPlan {
  const plan::Description& description;
  const state::Layout& layout;
  const state::Ownership& ownership;  ///< which chunks of it this process has, keeps durable and recovers
  const plan::Budget& budget;
  const plan::Rates& rates;
  const plan::Plan& plan;
  const std::vector<NodeOptions>& nodes;
  const DeviceOptions& device;
  network::Port* network = nullptr;  ///< to the other processes of the description's world; null: there are none
  std::uint64_t piece_period = 0;    ///< steps between two choices of the pieces in memory (hot_pieces.h); 0: none

  /// The same plan for a process of another description and ownership, without a network.
  [[nodiscard]] RunPlan adapt_to(const plan::Description& its_description, const state::Ownership& its) const {
    return {its_description, layout, its, budget, rates, plan, nodes, device};
  }
  [[nodiscard]] bool durable() const noexcept { return plan.durability != plan::Durability::none; }
};

}  // namespace spillway::execute
