// What the compute type is to a device.
#pragma once

#include "spillway/device/work.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

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

}  // namespace spillway::execute
