// How fast bytes get to a device with memory of its own and back, from each NUMA node: as the copies of a step do,
// from registered memory, by streams of their own.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/device/cuda_driver.h"
#include "spillway/device/device.h"
#include "spillway/machine/profile.h"

namespace spillway::machine {

struct LinkOptions {
  double seconds = 0.1;         ///< for each direction alone, and for both together
  Bytes memory = 256 * MiB;     ///< of the host and of the device for each direction
  Bytes piece = 32 * MiB;       ///< of a copy
  std::vector<unsigned> nodes;  ///< NUMA nodes to copy from and to; empty: wherever the kernel puts it
};

/// One entry by node, in their order; without nodes one of node 0. `device`: opened for this; its arena is allocated
/// here. A node without room is left out. Throws what the device throws, Error(does_not_fit) when it has no room.
[[nodiscard]] std::vector<LinkProfile> measure_links(device::Device& device, const LinkOptions& options);

/// Every GPU that this process sees, with its memory, its links and how fast it updates; `flops_per_second` stays
/// unknown. Of both directions together the best node's are the GPU's own. Empty without a driver or a GPU. `library`:
/// for tests.
[[nodiscard]] std::vector<GpuProfile> measure_gpus(const LinkOptions& options,
                                                   const std::string& library = device::kCudaLibrary);

}  // namespace spillway::machine
