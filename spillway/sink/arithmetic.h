// Where the arithmetic of passes is done besides PyTorch's, and what the compute type is there.
#pragma once

#include <cstddef>

#include "spillway/device/device.h"
#include "spillway/plan/device_workspace.h"
#include "spillway/state/layout.h"

namespace spillway::sink {

/// A device, and the stream that passes are issued to.
struct Arithmetic {
  device::Device& device;
  device::Stream stream = 0;
  std::byte* workspace = nullptr;    ///< in its memory, of plan::device_workspace(); null: host memory of our own
  plan::DeviceWorkspace sizes = {};  ///< of that
};

}  // namespace spillway::sink
