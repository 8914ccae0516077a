#include "spillway/machine/device_update.h"

#include "spillway/machine/calibrate.h"

namespace spillway::machine {
namespace {

/// Weight and remainder, two moments, gradient.
constexpr Bytes kBytes = 2 + 2 + 4 + 4 + 2;

}  // namespace

double device_update_rate(device::Device& device, double seconds) {
  const auto memory = device.memory();
  const auto n = memory.size() / kBytes / 64 * 64;
  if (n == 0 || !device.cannot_compute().empty()) return 0;
  const auto halves = [&](Bytes first) { return reinterpret_cast<std::uint16_t*>(memory.data() + first * n); };
  const auto floats = [&](Bytes first) { return reinterpret_cast<float*>(memory.data() + first * n); };
  const device::AdamWUpdate work{.weight = halves(8),
                                 .remainder = halves(10),
                                 .exp_avg = floats(0),
                                 .exp_avg_sq = floats(4),
                                 .grad = halves(12),
                                 .n = n};
  const auto stream = device.make_stream();
  const auto end = device.make_event();
  device.fill(stream, memory.data(), 0, memory.size());
  const auto round = [&] {
    device.run(stream, work);
    device.record(end, stream);
    device.synchronise(end);
  };
  return static_cast<double>(n) * calls_per_second(round, seconds);
}

}  // namespace spillway::machine
