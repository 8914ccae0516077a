#include "spillway/machine/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/device/typed.h"
#include "spillway/kernels/moments.h"
#include "spillway/kernels/weights_scalar.h"
#include "spillway/machine/compute_load.h"

namespace spillway::machine {
namespace {

constexpr std::size_t kMostStreams = 4;
constexpr Bytes kTransfer = 8 * MiB;
constexpr Bytes kScalesAt = 16;        ///< what lies behind scales begins at a multiple of this
constexpr double kEnough = 256 * MiB;  ///< moved, a rate is known within a per cent: pieces end one MiB at a time
constexpr double kMostTimes = 4;       ///< as long as asked, on a slow path

void require_memory(std::span<std::byte> memory) {
  if (memory.size() >= kCalibrationMemory) return;
  throw Error(ErrorCode::internal,
              text("a measurement needs ", human(kCalibrationMemory), " of memory, not ", human(memory.size())));
}

/// The first of `n` items, `n` times.
void repeat(std::byte* items, std::size_t n, Bytes bytes) {
  for (std::size_t made = 1; made < n; made *= 2) {
    std::memcpy(items + made * bytes, items, std::min(made, n - made) * bytes);
  }
}

/// Weights of 1, gradients of 0.001.
void fill(kernels::Weights weights, const kernels::UpdateSpan& span, std::byte* grad) {
  const float gradient = 1e-3F;
  const auto& type = traits(weights);
  kernels::scalar::put_master(weights, span, 0, 1);
  static_cast<void>(device::round_norm(weights, &gradient, grad, 1));
  repeat(span.weight, span.n, type.bytes);
  repeat(grad, span.n, type.bytes);
  if (type.remainder > 0) repeat(span.remainder, span.n, type.remainder);
}

/// Lays out as many elements as `memory` holds; moments are zero.
kernels::UpdateSpan lay_out(std::span<std::byte> memory, const UpdateKind& kind) {
  std::ranges::fill(memory, std::byte{0});
  const auto out = update_span(memory, kind);
  fill(kind.form.weights, out, const_cast<std::byte*>(out.grad));
  return out;
}

/// The number, out of `cores` that compute, that is lost at `full` bytes per second.
double cores_lost(double full, unsigned cores, double seconds, const std::function<LoadResult()>& load) {
  double rate = 0;
  const auto share = share_beside(cores, seconds, [&] { rate = load().rate(); });
  return rate > 0 ? cores * (1 - share) * full / rate : 0;
}

}  // namespace

kernels::UpdateSpan update_span(std::span<std::byte> memory, const UpdateKind& kind) {
  const auto weight = traits(kind.form.weights).bytes, remainder = traits(kind.form.weights).remainder;
  const auto moment = traits(kind.form.moments).bytes;
  const auto moments = kernels::moment_count(kind.optimizer);
  const auto block = kernels::kQuantBlock * (2 * weight + remainder + moments * moment) + moments * 4;
  const auto room = memory.size() - std::min<Bytes>(memory.size(), moments * kScalesAt);
  kernels::UpdateSpan out{.n = room / block * kernels::kQuantBlock};
  auto* at = memory.data();
  const auto take = [&](Bytes size) { return std::exchange(at, at + size); };
  for (std::size_t m = 0; m < moments; ++m) {
    if (!traits(kind.form.moments).is_scaled) break;
    out.scales[m] = reinterpret_cast<float*>(take(round_up(out.n / kernels::kQuantBlock * 4, kScalesAt)));
  }
  out.remainder = remainder > 0 ? take(out.n * remainder) : nullptr;
  for (std::size_t m = 0; m < moments; ++m) out.moments[m] = take(out.n * moment);
  out.weight = take(out.n * weight);
  out.grad = take(out.n * weight);
  return out;
}

PathProfile calibrate_path(storage::Path& path, const std::string& name, std::span<std::byte> memory, Load::Area area,
                           double seconds, unsigned cores) {
  require_memory(memory);
  if (area.bytes < kCalibrationArea) {
    throw Error(ErrorCode::internal,
                text("a path is measured on ", human(kCalibrationArea), " or more, not ", human(area.bytes)));
  }
  const std::size_t streams = std::min<std::size_t>(kMostStreams, memory.size() / kTransfer);
  Load load(path, memory, area, kTransfer);
  const double rate = load.fill(streams).write_rate();
  seconds = std::clamp(rate > 0 ? kEnough / rate : seconds, seconds, kMostTimes * seconds);
  PathProfile out;
  out.name = name;
  out.write_bytes_per_second = load.steady(0, streams, seconds).write_rate();
  out.read_bytes_per_second = load.steady(streams, 0, seconds).read_rate();
  const auto both = [&] { return load.steady((streams + 1) / 2, streams / 2, seconds); };
  const LoadResult mixed = both();
  out.mixed_bytes_per_second = mixed.rate();
  out.cores_at_full_speed =
      cores > 0 ? cores_lost(mixed.rate(), cores, seconds, both) : mixed.cpu_seconds / mixed.seconds;
  return out;
}

double calibrate_update(std::span<std::byte> memory, double seconds, const UpdateKind& kind) {
  require_memory(memory);
  const auto span = lay_out(memory, kind);
  const kernels::UpdateStep step{.optimizer = kind.optimizer, .learning_rate = 1e-5};
  return calls_per_second([&] { kernels::update(kind.form, span, step); }, seconds) * static_cast<double>(span.n);
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
