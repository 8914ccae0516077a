// Places of frozen weights that move within a run. The plan gives each chunk a place. Two chunks of one size swap their
// places between steps, and the schedule stays as it is.
#pragma once

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace spillway::execute {

/// A slot is the place that the plan gives to the chunk of the same number. Lanes read while a step runs; nothing is
/// swapped then.
class WeightSlots {
 public:
  explicit WeightSlots(std::size_t chunks) : slots_(chunks) {
    std::iota(slots_.begin(), slots_.end(), std::size_t{0});
    chunks_ = slots_;
  }

  /// The slot that holds the weights of a chunk.
  [[nodiscard]] std::size_t slot_of(std::size_t chunk) const { return slots_[chunk]; }
  /// The chunk whose weights a slot holds.
  [[nodiscard]] std::size_t chunk_in(std::size_t slot) const { return chunks_[slot]; }

  void swap(std::size_t one, std::size_t other) {
    std::swap(slots_[one], slots_[other]);
    chunks_[slots_[one]] = one;
    chunks_[slots_[other]] = other;
  }

 private:
  std::vector<std::size_t> slots_;   ///< by chunk
  std::vector<std::size_t> chunks_;  ///< by slot
};

}  // namespace spillway::execute
