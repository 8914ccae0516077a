// How fast a compute device with memory of its own updates chunks that live there.
#pragma once

#include "spillway/device/device.h"
#include "spillway/machine/calibrate.h"

namespace spillway::machine {

/// Elements per second of the update over all of the device's arena, which is allocated and holds nothing of value
/// afterwards; best are more bytes than the device's caches. `kind`: of an optimizer that a device updates. 0: there is
/// no arena, or it cannot compute. Throws what the device throws.
[[nodiscard]] double device_update_rate(device::Device& device, double seconds = 0.2, const UpdateKind& kind = {});

}  // namespace spillway::machine
