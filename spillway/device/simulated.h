// A device made of host memory, whose copies take time: what a GPU would do, and every order of events that it might.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "spillway/device/device.h"

namespace spillway::device {

struct SimulatedOptions {
  Bytes memory = ~Bytes{0};  ///< that can be allocated
  double to_device = 0;      ///< bytes per second; 0 = as fast as memory
  double from_device = 0;
  double latency = 0;              ///< seconds that every copy takes beside its bytes
  double update = 0;               ///< elements per second that are updated at most; 0 = as fast as the host does it
  bool registers = true;           ///< false: registering host memory is refused
  Bytes piece = kRegisteredPiece;  ///< of host memory that is registered at once
  std::optional<int> node = {};    ///< NUMA node of the host that its link is attached to
  std::uint64_t seed = 0;          ///< of random delays; 0 = none
  double longest_delay = 2e-4;     ///< seconds, of one operation
};

/// What memory holds before anything is written there, and while a copy is under way to it: no number in any format.
inline constexpr std::uint8_t kPoison = 0xFF;

/// Every stream of its own has a thread. Copies to memory that is still in use, and uses of memory before its copy, are
/// data races that the thread sanitizer sees; without it, they find poison.
class Simulated : public Device {
 public:
  using Device::Device;

  /// Host code in the order of a stream, as a kernel would run: on a stream of the device's own it returns at once.
  virtual void call(Stream stream, std::function<void()> work) = 0;

  /// Copies to and from this range of host memory, a slow node's, run at these rates at most: bytes per second, 0 = the
  /// link's. They hold the link for as long as they take. Called before the first copy.
  virtual void limit(std::span<const std::byte> host, double to_device, double from_device) = 0;
};

[[nodiscard]] std::unique_ptr<Simulated> make_simulated(const SimulatedOptions& options);

}  // namespace spillway::device
