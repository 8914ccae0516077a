#include "spillway/device/registered.h"

#include <utility>

#include "spillway/base/error.h"

namespace spillway::device {

Registered::Registered(std::unique_ptr<Device> device, std::span<std::byte> range)
    : device_(std::move(device)), range_(range) {
  if (device_->register_host(range_)) return;
  throw Error(ErrorCode::unsupported, "pinned: " + device_->notice() + "; leave `pinned` out, or raise `ulimit -l`");
}

Registered::~Registered() {
  device_->unregister_host(range_);
}

}  // namespace spillway::device
