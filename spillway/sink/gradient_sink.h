// What the gradients of reduced matrices (optim/reduction.h) pass through on their way from autograd to their chunks:
// taken whole or as factors, left in the reduced shape, with auxiliary fields beside it that a background refit may
// make anew. One that reduces is an implementation of GradientSink; nobody else knows how.
//
// The state of a chunk has the auxiliary fields that its next gradient is made with. A refit's are made beside the
// passes, go into that step's gradient record, and are those of the next step: the update applies the reduced gradient
// by the ones before and then takes over the new ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/kernels/update.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::sink {

/// The update of a reduced matrix, from its chunk's groups and the step alone, so that it can be done again from them.
/// One chunk at a time, part after part, each of tiles that threads share. Calls do not throw.
class HostUpdate {
 public:
  virtual ~HostUpdate() = default;
  /// Once, before the parts.
  virtual void prepare(const state::Chunk& chunk, const state::GroupPointers& groups) = 0;
  [[nodiscard]] virtual std::size_t parts() const noexcept = 0;
  [[nodiscard]] virtual std::size_t tiles(const state::Chunk& chunk, std::size_t part) const noexcept = 0;
  virtual void run(const state::Chunk& chunk, const state::GroupPointers& groups, const kernels::UpdateStep& step,
                   std::size_t part, std::size_t tile) = 0;
  /// Once, after them.
  virtual void finish(const state::Chunk& chunk, const state::GroupPointers& groups) = 0;
};

/// The update as work of the device that weight, state and gradient are on: the bits of HostUpdate.
class DeviceUpdate {
 public:
  virtual ~DeviceUpdate() = default;
  /// The update of the last step applied, before the next one ends. One thread at a time, one stream for all. Throws as
  /// the device does.
  virtual void run(device::Device& device, device::Stream stream, const state::Chunk& chunk,
                   const state::GroupPointers& groups, const kernels::UpdateStep& step) = 0;
  /// Adds the change that the host's update of that step has left to copies of weight and remainder there: the bits of
  /// the host's. `groups.state` holds the remainder alone.
  virtual void apply(device::Device& device, device::Stream stream, const state::Chunk& chunk,
                     const state::GroupPointers& groups, const kernels::UpdateStep& step) = 0;
};

/// The sink of a run. Tensors are numbers in its layout; calls of one that is not reduced throw Error(bad_input). Calls
/// are the caller's thread's, but for those of refits.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  GradientSink() = default;
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  /// Once, before the first step: where passes compute. Memory that the device is told of stays until this is gone.
  virtual void use(const Arithmetic& where, const device::ParallelFor& parallel_for) = 0;
  /// `delta`: on the device, fp32, for the largest reduced gradient that is updated there. Of a rule that
  /// plan::no_device_update() has nothing against. This and `rule`'s layout must outlive it.
  [[nodiscard]] virtual std::unique_ptr<DeviceUpdate> make_device_update(const state::UpdateRule& rule,
                                                                         float* delta) const = 0;

  // Steps.

  /// Between steps: the auxiliary fields as they lie in the state group of the tensor's chunk.
  virtual void restore(std::size_t tensor, const std::byte* fields) = 0;
  /// A training step begins, after so many updates; gradients come multiplied by `scale`. Whole ones are wanted of the
  /// first `first_rank` micro-batches alone: those of the first virtual rank, which one process has.
  virtual void begin(std::int64_t updates, double scale, std::uint64_t first_rank) = 0;
  /// The step has ended: applied, or skipped, and then what it has changed is forgotten.
  virtual void end(bool applied) = 0;

  // A backward pass, in the order of the stream.

  virtual void open(const state::Block& block) = 0;
  /// Whether this micro-batch's gradient is wanted whole before it is reduced.
  [[nodiscard]] virtual bool wants_whole(std::size_t tensor, std::uint64_t micro_batch) const = 0;
  /// [rows, columns], fp32, where passes compute.
  virtual void take_whole(std::size_t tensor, std::span<const float> gradient) = 0;
  /// A factor of the gradient: side 0, of the output's gradient, or 1, of the input. in [tokens][rows of the side, or
  /// more], out [rank][tokens], of what passes compute in, both there.
  virtual void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride,
                        std::size_t tokens, std::byte* out) = 0;
  /// The signs z [columns] of this step, on the host, for G z [rows] of each micro-batch.
  virtual void signs(std::size_t tensor, std::span<float> out) const = 0;
  /// Whether there is what a gradient is reduced by; false: the step is to be skipped. With several virtual ranks the
  /// first step has nothing yet, and its reduced gradients are zero.
  [[nodiscard]] virtual bool ready(std::size_t tensor) const = 0;
  /// The reduced gradient is complete; `squares` are its tiles' sums. `seen`: G z of the step, fp32, which is
  /// overwritten; empty: there was no micro-batch. Writes its record to `out`, all of these where passes compute. In a
  /// world of several processes called by whoever has the chunk, by any thread, for one tensor at a time.
  virtual void close(std::size_t tensor, std::span<const double> squares, std::span<float> seen, std::byte* out) = 0;
  /// Gives the copy of all records to the host to the stream; tell() after the stream has come to it.
  virtual void fetch() = 0;
  /// The records of the step, of all tensors: those that this process has not closed are zeros, and in a world of
  /// several processes the others' take their place before tell().
  [[nodiscard]] virtual std::span<double> records() = 0;
  virtual void tell() = 0;

  // The background refit of a tensor, until the next open(), by one thread but for refit().

  /// Whether the step's gradient record is to get new fields.
  [[nodiscard]] virtual bool refits(std::size_t tensor) const = 0;
  virtual void begin_refit(std::size_t tensor) = 0;
  [[nodiscard]] virtual std::size_t refit_tiles(std::size_t tensor, unsigned part) const = 0;
  virtual void refit(unsigned part, std::size_t tile) = 0;
  /// Writes them behind the record in `fields`, unless that is null.
  virtual void end_refit(std::size_t tensor, std::byte* fields) = 0;

  // In a world of several processes one refits, and all others are told, until the next open(), by any thread.

  /// Whether the step is to refit the tensor, the same on all of them.
  [[nodiscard]] virtual bool due(std::size_t tensor) const = 0;
  /// What is sent by the one that refits, after end_refit(), or received from it.
  [[nodiscard]] virtual std::vector<std::span<std::byte>> exchanged(std::size_t tensor, bool sends) = 0;
  /// It has come, or left. Where it was refitted, writes record and new fields to `fields`, unless that is null.
  virtual void received(std::size_t tensor, std::byte* fields) = 0;

  // These are told of the last step.

  /// The running estimate of what is missed, relative to the gradient; 0 before the first sample.
  [[nodiscard]] virtual double error(std::size_t tensor) const = 0;
  /// Times that the auxiliary fields were made so far.
  [[nodiscard]] virtual std::uint64_t refit_count(std::size_t tensor) const = 0;
};

}  // namespace spillway::sink
