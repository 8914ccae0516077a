// How many blocks a device updates: those that live there, whose weight, state and gradient have no other place, and
// those that pass, whose state comes for the update and goes back.
#pragma once

#include <string>
#include <vector>

#include "spillway/plan/comparison.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Compares plans in which as many blocks live on the device as have room, half of these, and so on down to none, while
/// a step does not grow by a twentieth. Where the passes of the best one leave time, that one, and the one in which
/// none lives there, are compared with plans in which every other block is updated there, half of them, and so on while
/// that is faster; where paths take longer than updates and neither every one nor an eighth of them makes a step
/// faster, none between is tried, and with none resident only every one.
void compare_device_blocks(const Problem& problem, const Decisions& from, Comparison& comparison,
                           const DecisionSearch& below);

/// Numbers of blocks around those of `from`.
[[nodiscard]] std::vector<Decisions> near_device_blocks(const Problem& problem, const Decisions& from);

/// Why no block may be updated there without being asked; empty: blocks may.
[[nodiscard]] std::string why_no_device_blocks(const Description& description, const state::Layout& layout,
                                               const Rates& rates);

/// Blocks of layers, and slices of a head, by what the device does with them.
struct DeviceBlocks {
  std::size_t device_resident = 0;  ///< weight and state are there, and so is the update
  std::size_t device_updated = 0;   ///< the update is there, weight and state come for it from the host and go back
  std::size_t weights = 0;          ///< a copy of the weights stays there, the update is the host's
  std::size_t changes = 0;          ///< matrices of these whose copies take changes
  std::size_t streamed = 0;         ///< weights come for every pass, the update is the host's
  Bytes durable = 0;  ///< that a step has leave so that it is durable, of what else would stay: gradients, of
                      ///< the first kind snapshots in turn
};
[[nodiscard]] DeviceBlocks device_blocks(const Plan& plan, const Description& description, const state::Layout& layout);

/// The choice and its reason, for people.
[[nodiscard]] std::string device_blocks_words(const Plan& plan);

}  // namespace spillway::plan
