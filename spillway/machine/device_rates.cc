#include "spillway/machine/device_rates.h"

#include <algorithm>
#include <future>
#include <span>

#include "spillway/base/error.h"
#include "spillway/machine/calibrate.h"
#include "spillway/sys/mapping.h"

namespace spillway::machine {
namespace {

using device::Direction;

/// Weight and residual, two moments, gradient.
constexpr Bytes kUpdateBytes = 2 + 2 + 4 + 4 + 2;

/// Work given to a stream of its own, and waited for.
class Rounds {
 public:
  explicit Rounds(device::Device& device) : device_(device), stream_(device.make_stream()), end_(device.make_event()) {}

  template <class Give>
  double per_second(double seconds, const Give& give) {
    const auto round = [&] {
      give(stream_);
      device_.record(end_, stream_);
      device_.synchronise(end_);
    };
    return calls_per_second(round, seconds);
  }

 private:
  device::Device& device_;
  const device::Stream stream_;
  const device::Event end_;
};

/// Bytes per second of copies between two ranges as large, in pieces of a good size.
double copy_rate(device::Device& device, Direction direction, std::span<std::byte> to, std::span<const std::byte> from,
                 double seconds) {
  Rounds rounds(device);
  const auto give = [&](device::Stream stream) {
    for (Bytes at = 0; at < to.size(); at += device::kGoodCopy) {
      device.copy(stream, direction, to.data() + at, from.data() + at, std::min(device::kGoodCopy, to.size() - at));
    }
  };
  return static_cast<double>(to.size()) * rounds.per_second(seconds, give);
}

double update_rate(device::Device& device, double seconds) {
  if (!device.cannot_compute().empty()) return 0;
  auto* const at = device.memory().data();
  const auto n = device.memory().size() / kUpdateBytes / 64 * 64;
  const auto halves = [&](Bytes offset) { return reinterpret_cast<std::uint16_t*>(at + offset * n); };
  const auto floats = [&](Bytes offset) { return reinterpret_cast<float*>(at + offset * n); };
  const device::AdamWUpdate work{.weight = halves(8),
                                 .residual = halves(10),
                                 .exp_avg = floats(0),
                                 .exp_avg_sq = floats(4),
                                 .grad = halves(12),
                                 .n = n};
  Rounds rounds(device);
  return static_cast<double>(n) * rounds.per_second(seconds, [&](auto stream) { device.run(stream, work); });
}

}  // namespace

DeviceRates measure_device_rates(device::Device& device, Bytes bytes, double seconds) {
  if (bytes < kDeviceRatesMemory) throw Error(ErrorCode::internal, "too little memory to measure a device in");
  const sys::Mapping mapping(bytes);
  const auto host = mapping.span();
  std::ranges::fill(host, std::byte{0});
  device.register_host(host);
  const auto memory = device.allocate(bytes);
  const auto stream = device.make_stream();
  device.fill(stream, memory.data(), 0, memory.size());
  device.synchronise();
  DeviceRates out;
  const auto half = bytes / 2;
  auto up = std::async(std::launch::async, [&] {
    return copy_rate(device, Direction::to_device, memory.first(half), host.first(half), seconds);
  });
  out.from_device =
      copy_rate(device, Direction::from_device, host.subspan(half, half), memory.subspan(half, half), seconds);
  out.to_device = up.get();
  out.update = update_rate(device, seconds);
  device.synchronise();
  device.unregister_host(host);
  return out;
}

}  // namespace spillway::machine
