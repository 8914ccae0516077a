// How many blocks live on a device: weight, state and gradient have no other place, and the update is there.
#pragma once

#include <functional>
#include <optional>

#include "spillway/plan/planner.h"

namespace spillway::plan {

/// A plan in which so many blocks live on the device. Throws Error(does_not_fit).
using PlanWithLiving = std::function<Plan(std::size_t)>;

/// Of the plans in which none, `most`, half of these, and so on live there the fastest; of those within a percent of it
/// the one that moves least. Throws what the plan with none throws when none fits.
[[nodiscard]] Plan choose_living(const PlanWithLiving& plan, std::size_t most);

/// Why no block may live there without being asked; empty: blocks may.
[[nodiscard]] std::string no_living(const Description& description, const state::Layout& layout, const Rates& rates);

/// Blocks of layers, and slices of a head, by what the device does with them.
struct DeviceBlocks {
  std::size_t living = 0;    ///< weight and state are there, and so is the update
  std::size_t weights = 0;   ///< a copy of the weights stays there, the update is the host's
  std::size_t streamed = 0;  ///< weights come for every visit, the update is the host's
  Bytes durable = 0;         ///< that a step has leave the first kind so that it is durable: gradients, images in turn
};
[[nodiscard]] DeviceBlocks device_blocks(const Plan& plan, const Description& description, const state::Layout& layout);

/// What was chosen and why, for people.
[[nodiscard]] std::string living_words(const Plan& plan);

}  // namespace spillway::plan
