// Resources of a run on this machine: the arena, threads, and a device with memory of its own if the plan has one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "spillway/device/device.h"
#include "spillway/execute/arenas.h"
#include "spillway/execute/device_options.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/memory/arena.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

class Resources {
 public:
  /// Maps the arena, tells the paths of it, and opens the device; what was told of the memory must be gone before this
  /// is. `threads`: of the host's own arithmetic, the caller included; 0 is 1.
  Resources(const RunPlan& plan, unsigned threads, std::span<storage::Path* const> paths);
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;

  [[nodiscard]] std::span<std::byte> host() const noexcept { return arena_.span(); }
  /// Above what is resident: between steps for a chunk and what updating it again takes.
  [[nodiscard]] std::span<std::byte> scratch() const { return host().subspan(resident_); }
  /// Memory that block passes compute in, but those of the embedding: the device's, else the host's.
  [[nodiscard]] std::span<std::byte> computing() const { return open_.device ? open_.device->memory() : host(); }
  [[nodiscard]] Arenas arenas() const { return {host().data(), open_.device ? computing().data() : nullptr}; }

  /// The device, with memory of its own; null: passes compute on the host.
  [[nodiscard]] device::Device* device() const noexcept { return open_.device.get(); }
  /// That passes are issued to.
  [[nodiscard]] device::Stream stream() const noexcept { return open_.stream; }
  [[nodiscard]] const sink::Arithmetic& arithmetic() const noexcept { return arithmetic_; }
  /// On the device that passes compute on, in the order of their stream.
  void compute(const device::Work& work) { arithmetic_.device.run(arithmetic_.stream, work); }

  [[nodiscard]] ThreadPool& thread_pool() noexcept { return thread_pool_; }
  [[nodiscard]] device::ParallelFor parallel_for();  ///< the same threads, for a device
  [[nodiscard]] sink::GradientSink& gradient_sink() noexcept { return *sink_; }

 private:
  [[nodiscard]] OpenDevice open(const RunPlan& plan) const;
  [[nodiscard]] sink::Arithmetic make_arithmetic(const RunPlan& plan);

  const Bytes resident_;
  memory::Arena arena_;
  const std::unique_ptr<sink::GradientSink> sink_;  ///< with memory that the device knows
  ThreadPool thread_pool_;
  OpenDevice open_;
  std::unique_ptr<device::Device> cpu_;  ///< where arithmetic is done when there is no other device
  sink::Arithmetic arithmetic_;
};

}  // namespace spillway::execute
