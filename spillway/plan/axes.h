// The axes that plans are compared on, and what was compared. Each axis is a row of kAxes; the plan's text and
// plan.json list, for each of them, what was tried and what it would have cost.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "spillway/plan/decisions.h"

namespace spillway::plan {

enum class Axis : std::uint8_t {
  device_blocks,
  saved_activations,
  device_changes,
  process_weights,
  memory_tiers,
  lookahead,
  early_updates,
  durability,
};

struct AxisTraits {
  const char* name;   ///< of plan.json
  const char* title;  ///< for people
};

inline constexpr std::array<AxisTraits, 8> kAxes = {{
    {"device_blocks", "blocks on the device"},
    {"saved_activations", "saved activations"},
    {"device_changes", "copies of subspace matrices on the device"},
    {"process_weights", "weights of several processes"},
    {"memory_tiers", "tiers of host memory"},
    {"lookahead", "lookahead"},
    {"early_updates", "updates during backward"},
    {"durability", "durability"},
}};

[[nodiscard]] constexpr const AxisTraits& traits(Axis axis) noexcept {
  return kAxes[static_cast<std::size_t>(axis)];
}

/// One value of an axis, and what a plan with it comes to.
struct Compared {
  Axis axis = Axis::device_blocks;
  std::string value;         ///< in words
  Decisions decisions = {};  ///< of that plan
  bool fits = false;         ///< else what follows is 0
  double step_seconds = 0;   ///< predicted
  Bytes moved = 0;           ///< by a step, over paths and the link, both ways
  bool chosen = false;
};

}  // namespace spillway::plan
