// These options say where the volumes of a run lie, and what may be done to what is there.
#pragma once

#include <filesystem>
#include <vector>

#include "spillway/state/ownership.h"

namespace spillway::execute {

/// A directory, or a block device that is taken whole.
struct VolumePlace {
  std::filesystem::path path;
  bool device = false;

  /// That holds the bytes of the volume of a process of that world, whose rank is the number of its shard.
  [[nodiscard]] std::filesystem::path file(const state::World& world = {}) const;
};

struct VolumeOptions {
  std::vector<VolumePlace> places;  ///< must exist; each gets a volume
  bool overwrite = false;           ///< replace volumes of another run, and those in which this one has committed steps
  bool erase = false;               ///< of block devices: remove what else they hold
  bool keep = false;                ///< leave them behind at the end
};

}  // namespace spillway::execute
