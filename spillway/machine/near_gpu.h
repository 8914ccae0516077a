// What lies near a GPU and what does not: NUMA nodes and drives, by the bus that they are attached to.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/device/cuda_driver.h"

namespace spillway::machine {

/// The NUMA node nearest to GPU number `index` of those that this process sees; none: the kernel does not say, or
/// there is no such GPU. `library`, `root`: the driver and in place of "/", for tests.
[[nodiscard]] std::optional<int> gpu_node(int index, const std::string& library = device::kCudaLibrary,
                                          const std::string& root = "");

/// A storage path whose drive is nearer to another NUMA node.
struct RemoteDrive {
  std::filesystem::path place;
  int node = 0;  ///< that the drive is nearest to

  bool operator==(const RemoteDrive&) const = default;
};

/// Those of `places` (directories or block devices that exist) whose drive is known to be remote from `node`. Throws
/// Error(bad_input) for a missing path.
[[nodiscard]] std::vector<RemoteDrive> remote_drives(std::span<const std::filesystem::path> places, int node,
                                                     const std::string& root = "");

/// What a person should know of it.
[[nodiscard]] std::string words_of(const RemoteDrive& drive, int gpu, int node);

}  // namespace spillway::machine
