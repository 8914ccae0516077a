// These options say where the volumes of a run lie, and what may be done to what is there.
#pragma once

#include <filesystem>
#include <vector>

namespace spillway::execute {

/// A directory, or a block device that is taken whole.
struct VolumePlace {
  std::filesystem::path path;
  bool device = false;

  [[nodiscard]] std::filesystem::path file() const;  ///< that holds the volume's bytes
};

struct VolumeOptions {
  std::vector<VolumePlace> places;  ///< must exist; each gets a volume
  bool overwrite = false;           ///< replace volumes of another run, and those in which this one has committed steps
  bool erase = false;               ///< of block devices: remove what else they hold
  bool keep = false;                ///< leave them behind at the end
};

}  // namespace spillway::execute
