#include "spillway/execute/device_options.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {

std::optional<int> gpu_of(const std::string& name) {
  constexpr std::string_view kBegin = "cuda:";
  if (!name.starts_with(kBegin)) return std::nullopt;
  int out = 0;
  const auto* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kBegin.size(), end, out);
  if (error != std::errc() || at != end) return std::nullopt;
  return out;
}

OpenDevice open_gpu(int index, const DeviceOptions& options) {
  auto device = device::make_cuda({index, options.cuda.library, options.cuda.kernels, options.cuda.piece});
  if (const auto reason = device->cannot_compute(); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  const auto adopted = device->adopt_stream(options.stream);
  return {std::move(device), adopted};
}

OpenDevice open_device(const DeviceOptions& options) {
  if (const auto index = gpu_of(options.name)) return open_gpu(*index, options);
  if (options.name != "simulated") {
    throw Error(ErrorCode::bad_input, text("device: ", options.name,
                                           " is none that passes can compute on; there are cpu, simulated and cuda:N"));
  }
  auto device = device::make_simulated(options.simulated);
  const auto stream = options.queue ? device->make_stream() : device->adopt_stream(nullptr);
  if (options.queue) options.queue(*device, stream);
  return {std::move(device), stream};
}

}  // namespace spillway::execute
