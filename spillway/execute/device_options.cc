#include "spillway/execute/device_options.h"

#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {

OpenDevice open_device(const DeviceOptions& options) {
  if (options.name != "simulated") {
    throw Error(ErrorCode::bad_input,
                text("device: ", options.name, " is none that visits can compute on; there are cpu and simulated"));
  }
  auto device = device::make_simulated(options.simulated);
  auto* const simulated = device.get();
  if (!options.queue) {
    const auto stream = device->adopt_stream(nullptr);
    return {std::move(device), stream, nullptr};
  }
  const auto stream = device->make_stream();
  options.queue(*simulated, stream);
  return {std::move(device), stream, simulated};
}

}  // namespace spillway::execute
