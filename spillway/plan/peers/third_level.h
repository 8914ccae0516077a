// Optimizer states on drives, weights on the devices: ZeRO-3 with NVMe, and MLP-Offload (arXiv 2509.02480, section 3).
#pragma once

#include <cstdint>

#include "spillway/plan/hardware.h"

namespace spillway::plan {

struct ThirdLevelWork {
  double parameters = 0;
  double tokens = 0;      ///< of a step, all devices together
  double subgroup = 4e8;  ///< elements that are read, updated and written together, over all devices
};

/// Seconds.
struct IterationTimes {
  double forward = 0, backward = 0, update = 0;
  [[nodiscard]] double total() const noexcept { return forward + backward + update; }
};

/// Everything on the first drive. Backward writes fp32 gradients (4 bytes a parameter); the update begins when it has
/// ended, reads weights, moments and gradients in fp32 (16) and writes weights and moments (12), one subgroup in flight
/// in each direction.
[[nodiscard]] IterationTimes zero3_iteration(const Hardware& hardware, const ThirdLevelWork& work);

/// Every `every`-th subgroup on the second drive; gradients stay in bf16 in host memory; the order turns around each
/// iteration, so that the last `cached` bytes of states of one pass are the first of the next and are not moved.
[[nodiscard]] IterationTimes mlp_offload_iteration(const Hardware& hardware, const ThirdLevelWork& work, double cached,
                                                   unsigned every = 3);

}  // namespace spillway::plan
