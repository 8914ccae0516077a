// What lives where on a machine with devices, memory nodes and drives. Shares of each layer's chunks, so that traffic
// is even over a step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/device_memory.h"
#include "spillway/plan/hardware.h"

namespace spillway::plan {

/// What a caller bounds; 0 = what the machine has.
struct DeviceBudget {
  Bytes dram = 0;                        ///< of all DRAM nodes together; cards come on top
  Bytes device = 0;                      ///< of each device
  std::optional<Durability> durability;  ///< empty: `step` when anything is on a drive
};

/// Which group is made resident first, after the weights: what saves most traffic per byte depends on what bounds.
enum class Preference : std::uint8_t { activations, states };

struct DevicePlacement {
  double devices = 0;       ///< that work; 0: the host computes
  double device_state = 0;  ///< share of the chunks whose weight, state and gradient stay on the devices, dealt to them
  double device_border = 0;  ///< share of the border activations that stay there
  double device_weight = 0;  ///< share of the other chunks whose weights stay from forward to backward
  double weight_path = 0, state_path = 0, grad_path = 0, border_path = 0;  ///< of what is not on devices, on drives
  Shares state_nodes, grad_nodes, border_nodes;                            ///< by node, of what is in host memory
  Shares staging_nodes;  ///< of what passes through host memory: DRAM, by update bandwidth
  Shares drives;         ///< by drive
  bool relay = false;    ///< borders of all micro-batches do not stay on the device from layer to layer
  bool durable = false;  ///< steps are

  ByClass device_bytes;              ///< of one device
  std::vector<ByClass> node_bytes;   ///< by node
  std::vector<ByClass> drive_bytes;  ///< by drive

  [[nodiscard]] bool on_paths() const noexcept {
    return weight_path > 0 || state_path > 0 || grad_path > 0 || border_path > 0;
  }
};

/// Places everything; `on_device`: wish for `device_state`, as far as there is room. Residents of host memory go by
/// traffic saved per byte: weights, then activations and states as preferred, then gradients; states and weights are
/// dealt to nodes in proportion to their update bandwidth, gradients and activations go to DRAM first. Throws
/// Error(does_not_fit) naming the tier, the bytes asked, the bytes there, and what would fit.
[[nodiscard]] DevicePlacement place(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work,
                                    const DeviceBudget& budget, Preference preference, double on_device);

}  // namespace spillway::plan
