#include "spillway/machine/device_update.h"

namespace spillway::machine {

double device_update_rate(device::Device& device, double seconds, const UpdateKind& kind) {
  const auto memory = device.memory();
  const auto span = update_span(memory, kind);
  if (span.n == 0 || !device.cannot_compute().empty()) return 0;
  const auto stream = device.make_stream();
  const auto end = device.make_event();
  device.fill(stream, memory.data(), 0, memory.size());
  const auto round = [&] {
    device.run(stream, device::Update{.form = kind.form, .span = span, .step = {.optimizer = kind.optimizer}});
    device.record(end, stream);
    device.synchronise(end);
  };
  return static_cast<double>(span.n) * calls_per_second(round, seconds);
}

}  // namespace spillway::machine
