// A machine as planning sees it, and its resources in a flow. Plain values; `make_hardware` takes them from a profile.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "research/study/flow.h"
#include "spillway/base/bytes.h"
#include "spillway/machine/profile.h"

namespace spillway::study {

/// A NUMA node: DRAM of a socket, or a CXL card. Rates in bytes per second.
struct MemoryNode {
  std::string name = "numa:0";
  bool cxl = false;
  Bytes capacity = 0;
  double update = 0;        ///< bytes that updates move there; 0 = not updated there
  double to_devices = 0;    ///< ceiling of all transfers from it to devices together; 0 = the devices' links alone
  double from_devices = 0;  ///< and the other way
};

/// A GPU. Machines have equal ones.
struct Device {
  std::string name = "gpu:0";
  double flops = 0;        ///< per second, as training reaches them
  double update = 0;       ///< bytes per second that updates in its own memory move; 0 = none there
  double to_device = 0;    ///< of its link, bytes per second
  double from_device = 0;  ///< and the other way; both at once
};

/// A storage path: a drive, or a network or parallel file system. Rates in bytes per second, as PathRates.
struct Drive {
  std::string name = "path:0";
  double read = 0, write = 0;
  double mixed = 0;  ///< half reads and half writes at once, summed; 0 = a share of the time each
};

struct Hardware {
  std::string name;
  std::vector<MemoryNode> nodes;
  std::vector<Device> devices;
  std::vector<Drive> drives;
};

/// The machine of a profile with nodes and GPUs; rates of updates become bytes, 26 for an element.
[[nodiscard]] Hardware make_hardware(const machine::Profile& profile);

/// Shares of bytes by node, drive or device, summing to 1.
using Shares = std::vector<double>;

/// The resources of a machine, and what a unit of work takes of them.
class FlowMachine {
 public:
  /// `devices`: how many of them work (at most those there).
  FlowMachine(Flow& flow, const Hardware& hardware, std::size_t devices);

  /// Per operation.
  [[nodiscard]] std::vector<FlowUse> compute(std::size_t device) const;
  /// Per byte of a transfer whose host side lies on the nodes in these shares.
  [[nodiscard]] std::vector<FlowUse> to_device(std::size_t device, const Shares& nodes) const;
  [[nodiscard]] std::vector<FlowUse> from_device(std::size_t device, const Shares& nodes) const;
  /// Per byte, distributed to the drives in these shares.
  [[nodiscard]] std::vector<FlowUse> read(const Shares& drives) const;
  [[nodiscard]] std::vector<FlowUse> write(const Shares& drives) const;
  /// Per byte that updates move on the nodes in these shares.
  [[nodiscard]] std::vector<FlowUse> update(const Shares& nodes) const;
  /// Per byte that updates move in a device's memory.
  [[nodiscard]] std::vector<FlowUse> device_update(std::size_t device) const;

  [[nodiscard]] const Hardware& hardware() const noexcept { return hardware_; }

 private:
  [[nodiscard]] std::vector<FlowUse> link(std::uint32_t link, bool back, const Shares& nodes) const;

  const Hardware& hardware_;
  std::vector<std::uint32_t> compute_, to_, from_, device_update_;  ///< by device
  std::vector<std::uint32_t> node_to_, node_from_, node_update_;    ///< by node
  std::vector<std::uint32_t> drive_;
};

/// Shares in proportion to weights; equal ones when all are 0.
[[nodiscard]] Shares in_proportion(std::span<const double> weights);
/// All of it at `index` of `count`.
[[nodiscard]] Shares all_at(std::size_t index, std::size_t count);

/// Bytes per second of half reads and half writes.
[[nodiscard]] double mixed_rate(const Drive& drive);

}  // namespace spillway::study
