// CXL-aware allocation (arXiv 2507.03305): raw transfers and updates over DRAM and cards, and a step under each of its
// ways to place seven classes of tensors.
#pragma once

#include <cstdint>

#include "research/study/hardware.h"

namespace spillway::study {

/// Bytes per second of each of `devices` that all move `bytes` at once, to or from memory on the nodes in these shares.
[[nodiscard]] double transfer_rate(const Hardware& hardware, std::size_t devices, bool from_device, const Shares& nodes,
                                   double bytes);

/// Seconds to update `elements` on the nodes in these shares; 28 bytes each: three fp32 arrays read and written, fp32
/// gradients read.
[[nodiscard]] double update_seconds(const Hardware& hardware, double elements, const Shares& nodes,
                                    double bytes_per_element = 28);

enum class CxlPlacement : std::uint8_t {
  dram_only,    ///< as if DRAM held everything
  interleaved,  ///< every class page by page over all nodes
  class_wise,   ///< the paper's: states, then weights, activations, gradients into DRAM; what fits in part evenly over
                ///< DRAM and cards, the rest over the cards
};

struct CxlWork {
  double parameters = 0;
  std::uint64_t layers = 0, hidden = 0;
  double sequence = 0, batch = 0;
};

/// One step on one device: weights and activations cross the link layer by layer beside compute, then the update.
/// Error(does_not_fit) when all nodes together do not hold it.
[[nodiscard]] double cxl_step_seconds(const Hardware& hardware, const CxlWork& work, CxlPlacement placement);

}  // namespace spillway::study
