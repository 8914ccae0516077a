// The tiers of host memory of a plan on this machine: which part of the arena is made of what, and who updates it.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/executor.h"
#include "spillway/execute/node_options.h"
#include "spillway/execute/run_plan.h"
#include "spillway/memory/backing.h"
#include "spillway/plan/planner.h"

namespace spillway::execute {

/// The regions of the plan. `options`: as plan::Budget::nodes; fewer: the rest have the default.
[[nodiscard]] std::vector<memory::ArenaPart> arena_parts(const plan::Plan& plan, const plan::Budget& budget,
                                                         const std::vector<NodeOptions>& options);

/// One lane per tier, each on the CPUs nearest to it.
[[nodiscard]] std::vector<UpdateLane> update_lanes(const plan::Budget& budget, const plan::Rates& rates,
                                                   const std::vector<NodeOptions>& options);

/// The lanes and cores of a run's updates.
[[nodiscard]] UpdateCores cores_of(const RunPlan& plan);

/// Memory on a plan's tiers of host memory, as the kernel reports it.
struct OnNodes {
  std::vector<memory::Held> held;  ///< by tier, of the parts of the arena that are for it
  std::vector<std::size_t>
      elsewhere;  ///< chunks of which a page of weight or state, where it stays, is not on its tier
  /// Gradients and activations that lie on a later tier.
  struct Aside {
    std::size_t buffers = 0;
    std::size_t elsewhere = 0;  ///< of them, that have a page which is not there
  };
  std::map<std::string, Aside> aside = {};  ///< by class of buffer
};
/// Asks for every page. A tier that may lie anywhere has what is planned for it.
[[nodiscard]] OnNodes on_nodes(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                               const plan::Budget& budget, const std::vector<NodeOptions>& options,
                               std::span<const std::byte> arena);

}  // namespace spillway::execute
