// Digests of the weights that a step's passes read and of the gradients that they leave. Two computations of a step are
// compared by them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

struct StepDigest {
  std::string name;         ///< "the gradient of model.norm.weight (chunk 3)"; once in a step
  bool is_weight = false;   ///< a pass has read the bytes; else it has made them
  std::uint64_t value = 0;  ///< XXH3-64
};

/// XXH3-64 of the checksums of each MiB. `bytes` are in host memory.
[[nodiscard]] std::uint64_t digest(std::span<const std::byte> bytes, ThreadPool& thread_pool);

class StepDigests {
 public:
  /// `where`: the device that passes compute on. All references must outlive it.
  StepDigests(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
              Arenas arenas, const sink::Arithmetic& where, ThreadPool& thread_pool);

  /// A step begins. `wanted`: false: nothing is added, at no cost.
  void begin(bool wanted);
  [[nodiscard]] bool wanted() const noexcept { return wanted_; }
  /// The weights that an open pass has read, but for those that passes ask for.
  void add_weights(const plan::Pass& pass);
  /// A complete part of a tensor's gradient that lies in `chunk`. `on_device`: in the memory of the device. Any thread.
  void add_gradient(const std::string& tensor, std::size_t chunk, std::span<const std::byte> values, bool on_device);
  /// The digests since the last call, in the order in which they were added.
  [[nodiscard]] std::vector<StepDigest> take();

 private:
  void add(std::string name, bool is_weight, std::span<const std::byte> bytes, bool on_device);
  [[nodiscard]] std::uint64_t digest_device(std::span<const std::byte> bytes);

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Arenas arenas_;
  const sink::Arithmetic where_;
  ThreadPool& thread_pool_;
  const device::Event copied_;
  bool wanted_ = false;
  std::vector<std::byte> staging_;  ///< bytes of the device; grows to its size and stays
  std::mutex mutex_;                ///< guards `made_`
  std::vector<StepDigest> made_;
};

}  // namespace spillway::execute
