// What a compute device with memory of its own reaches: copies both ways at once, and the update of chunks that live
// there.
#pragma once

#include "spillway/device/device.h"

namespace spillway::machine {

struct DeviceRates {
  double to_device = 0, from_device = 0;  ///< bytes per second, each while the other goes on
  double update = 0;                      ///< elements per second of AdamW with exact states; 0: it cannot compute
};

/// Least bytes that this takes; for updates more than the device's caches are better.
inline constexpr Bytes kDeviceRatesMemory = 32 * MiB;

/// Takes `bytes` of the device, whose arena must not have been allocated, and as much of the host, registered as far as
/// that is not refused. About `seconds` for copies and again for updates. Throws Error(internal) for fewer than
/// kDeviceRatesMemory, and what the device throws.
[[nodiscard]] DeviceRates measure_device_rates(device::Device& device, Bytes bytes, double seconds = 0.2);

}  // namespace spillway::machine
