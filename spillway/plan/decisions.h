// The outer decisions of a plan: one value for each axis that the search compares plans on. A budget says what may be
// used and what the caller asked for; it never carries a decision. The inner decisions are in fitting.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "spillway/plan/placement.h"

namespace spillway::plan {

/// Layers that do not recompute their saved activations.
struct SavedLayers {
  std::size_t keep = 0, spill = 0;
  TierId home = {};  ///< of the activations that spill: the paths, or a tier of host memory

  bool operator==(const SavedLayers&) const = default;
};

/// Blocks that a device updates. Each slice of a head counts as one block.
struct UpdatedThere {
  std::size_t device_resident = 0;  ///< blocks that live on the device
  std::size_t device_updated = 0;   ///< other blocks, whose state is uploaded for each update

  bool operator==(const UpdatedThere&) const = default;
};

struct Decisions {
  UpdatedThere blocks = {};
  SavedLayers layers = {};
  bool own_weights = false;      ///< each process keeps in memory its own weights alone (keep_own_weights())
  bool applies_changes = false;  ///< copies on the device take changes (ChunkPlacement::takes_change())
  Durability durability = Durability::none;
  /// Units of weights that stay in host memory, and passes' weights of which a copy stays on the device. None: as many
  /// as have room. The ranks of a run agree on both.
  std::optional<std::size_t> host_weights = {}, device_weights = {};

  bool operator==(const Decisions&) const = default;
};

/// The numbers an eighth of `most` below and above `value`, of those from 0 to `most`.
[[nodiscard]] inline std::vector<std::size_t> neighbours(std::size_t value, std::size_t most) {
  const auto apart = std::max<std::size_t>(1, most / 8);
  std::vector<std::size_t> out;
  if (value > 0) out.push_back(value - std::min(value, apart));
  if (value < most) out.push_back(std::min(most, value + apart));
  return out;
}

}  // namespace spillway::plan
