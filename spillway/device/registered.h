// Host memory that a GPU knows of while this lives, so that anybody's copies to and from it run at the link's speed.
#pragma once

#include <memory>
#include <span>

#include "spillway/device/device.h"

namespace spillway::device {

class Registered {
 public:
  /// `range` must outlive it. Throws Error(unsupported) with the device's reason when it refuses the range.
  Registered(std::unique_ptr<Device> device, std::span<std::byte> range);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  std::unique_ptr<Device> device_;
  std::span<std::byte> range_;
};

}  // namespace spillway::device
