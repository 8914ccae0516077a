// The axes that plans are compared on, and what was compared. Each axis is a row of kAxes; the plan's text and
// plan.json list, for each of them, what was tried and what it would have cost.
#pragma once

#include <array>
#include <bitset>
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
  const char* name;    ///< of plan.json
  const char* title;   ///< for people
  const char* reason;  ///< the tradeoff that makes it an axis
  bool is_shared;      ///< the ranks of a run have the same value, so that all of them send and receive alike
};

inline constexpr std::array<AxisTraits, 8> kAxes = {{
    {"device_blocks", "blocks on the device",
     "The device updates faster than the host, and a state that it updates takes its memory or its link.", true},
    {"saved_activations", "saved activations",
     "A layer that keeps or spills its saved activations skips recomputation, and takes memory or bandwidth.", false},
    {"device_changes", "copies of subspace matrices on the device",
     "A copy that takes changes is not sent again after an update, and the device does the work of the change.", true},
    {"process_weights", "weights of several processes",
     "A process that keeps its own weights alone has more memory left, and receives all others from its peers.", true},
    {"memory_tiers", "tiers of host memory",
     "Several tiers update chunks at once, and the share of each decides which tier ends last.", false},
    {"lookahead", "lookahead",
     "Transfers that begin earlier hide slow paths, and the chunks in flight take memory from resident ones.", false},
    {"early_updates", "updates during backward",
     "An update during backward shortens the step, and its old bytes take memory until the step is committed.", false},
    {"durability", "durability", "A durable step survives a power cut, and costs writes to the storage paths.", false},
}};

/// A set of axes.
using Axes = std::bitset<kAxes.size()>;

[[nodiscard]] constexpr const AxisTraits& traits(Axis axis) noexcept {
  return kAxes[static_cast<std::size_t>(axis)];
}
[[nodiscard]] inline bool has(const Axes& axes, Axis axis) {
  return axes.test(static_cast<std::size_t>(axis));
}
/// Axes of which the ranks of a run have the same value.
[[nodiscard]] inline Axes list_shared_axes() {
  Axes out;
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) out.set(axis, kAxes[axis].is_shared);
  return out;
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
