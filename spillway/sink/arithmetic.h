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

[[nodiscard]] constexpr device::Element element_of(state::ComputeType type) noexcept {
  switch (type) {
    case state::ComputeType::bf16:
      return device::Element::bf16;
    case state::ComputeType::fp16:
      return device::Element::fp16;
    case state::ComputeType::fp32:
      break;
  }
  return device::Element::fp32;
}

}  // namespace spillway::sink
