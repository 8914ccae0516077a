// How fast a compute device with memory of its own updates chunks that live there.
#pragma once

#include "spillway/device/device.h"

namespace spillway::machine {

/// Elements per second of AdamW with exact states over all of the device's arena, which is allocated and holds nothing
/// of value afterwards; best are more bytes than the device's caches. 0: there is no arena, or it cannot compute.
/// Throws what the device throws.
[[nodiscard]] double device_update_rate(device::Device& device, double seconds = 0.2);

}  // namespace spillway::machine
