#include "spillway/machine/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/kernels/update.h"

namespace spillway::machine {
namespace {

constexpr std::size_t kMostStreams = 4;
constexpr Bytes kTransfer = 8 * MiB;
/// An `exact` element with its gradient: weight, residual and gradient of 2 bytes, two moments of 4.
constexpr Bytes kElementBytes = 14;

void require_memory(std::span<std::byte> memory) {
  if (memory.size() >= kCalibrationMemory) return;
  throw Error(ErrorCode::internal,
              text("a measurement needs ", human(kCalibrationMemory), " of memory, not ", human(memory.size())));
}

/// The fields of an update, laid out in one span.
struct Fields {
  Fields(std::byte* memory, std::size_t count)
      : n(count),
        exp_avg(reinterpret_cast<float*>(memory)),
        exp_avg_sq(exp_avg + n),
        weight(reinterpret_cast<std::uint16_t*>(exp_avg_sq + n)),
        residual(weight + n),
        grad(residual + n) {
    std::fill_n(exp_avg, n, 1e-3F);
    std::fill_n(exp_avg_sq, n, 1e-6F);
    std::fill_n(weight, n, std::uint16_t{0x3F80});  // 1.0
    std::fill_n(residual, n, std::uint16_t{0});
    std::fill_n(grad, n, std::uint16_t{0x3A83});  // 0.001
  }

  void update() const {
    kernels::UpdateStep step;
    step.learning_rate = 1e-5;
    kernels::update({},
                    {.weight = reinterpret_cast<std::byte*>(weight),
                     .rest = reinterpret_cast<std::byte*>(residual),
                     .moments = {reinterpret_cast<std::byte*>(exp_avg), reinterpret_cast<std::byte*>(exp_avg_sq)},
                     .grad = reinterpret_cast<const std::byte*>(grad),
                     .n = n},
                    step);
  }

  std::size_t n;
  float* exp_avg;
  float* exp_avg_sq;
  std::uint16_t* weight;
  std::uint16_t* residual;
  std::uint16_t* grad;
};

}  // namespace

PathProfile calibrate_path(storage::Path& path, const std::string& name, std::span<std::byte> memory, Load::Area area,
                           double seconds) {
  require_memory(memory);
  if (area.bytes < kCalibrationArea) {
    throw Error(ErrorCode::internal,
                text("a path is measured on ", human(kCalibrationArea), " or more, not ", human(area.bytes)));
  }
  const std::size_t streams = std::min<std::size_t>(kMostStreams, memory.size() / kTransfer);
  Load load(path, memory, area, kTransfer);
  load.fill(streams);
  PathProfile out;
  out.name = name;
  out.write_bytes_per_second = load.run(0, streams, seconds).write_rate();
  out.read_bytes_per_second = load.run(streams, 0, seconds).read_rate();
  const LoadResult mixed = load.run((streams + 1) / 2, streams / 2, seconds);
  out.mixed_bytes_per_second = mixed.rate();
  out.cores_at_full_speed = mixed.cpu_seconds / mixed.seconds;
  return out;
}

double calibrate_update(std::span<std::byte> memory, double seconds) {
  require_memory(memory);
  constexpr Bytes kGranule = 64;  // keeps every field aligned as chunks are
  const Fields fields(memory.data(), memory.size() / kElementBytes / kGranule * kGranule);
  return calls_per_second([&] { fields.update(); }, seconds) * static_cast<double>(fields.n);
}

double calibrate_copy(std::span<std::byte> memory, double seconds) {
  require_memory(memory);
  const std::size_t half = memory.size() / 2;
  std::memset(memory.data(), 1, half);
  const auto copy = [&] { std::memcpy(memory.data() + half, memory.data(), half); };
  return calls_per_second(copy, seconds) * static_cast<double>(half);
}

double calls_per_second(const std::function<void()>& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  work();
  const auto began = Clock::now();
  std::chrono::duration<double> passed{};
  double calls = 0;
  do {
    work();
    ++calls;
    passed = Clock::now() - began;
  } while (passed.count() < seconds);
  return calls / passed.count();
}

}  // namespace spillway::machine
