// One gradient, summed over micro-batches in the order that plan::VirtualRanks says, as work of a device. What a rank
// has no gradient for counts as zero there. A process that has a part of the ranks makes the sums of their maximal
// subtrees, and the owner of the gradient adds those of all processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/device/work.h"
#include "spillway/execute/sum_loan.h"
#include "spillway/plan/virtual_ranks.h"

namespace spillway::execute {

class RankSums {
 public:
  /// Place of the sums of one gradient, in the device's memory.
  struct Place {
    float* lowest = nullptr;     ///< where the whole sum is at the end
    float* others = nullptr;     ///< the sum above it; null where the step has one rank
    std::uint64_t stride = 0;    ///< elements from one of these to the next
    std::uint64_t elements = 0;  ///< of the gradient
    [[nodiscard]] float* sum(unsigned number) const noexcept {
      return number == 0 ? lowest : others + (number - 1) * stride;
    }
  };
  /// How far one gradient has come; a new one for each step.
  struct Progress {
    std::uint64_t rank = 0;  ///< whose micro-batches are being added
    bool begun = false;      ///< there was one
  };

  RankSums(device::Device& device, device::Stream stream) noexcept : device_(device), stream_(stream) {}

  /// Begins a step. `ranks`: of this process.
  void begin(const plan::VirtualRanks& ranks) noexcept { ranks_ = ranks; }
  /// True if any rank of the step is this process's.
  [[nodiscard]] bool any() const noexcept { return ranks_.first() < ranks_.end(); }
  /// One micro-batch's, by its position in the step's order; positions rise.
  void add(const Place& place, Progress& progress, device::Element type, const std::byte* values,
           std::uint64_t position);
  void add(const Place& place, Progress& progress, const float* values, std::uint64_t position) {
    add(place, progress, device::Element::fp32, reinterpret_cast<const std::byte*>(values), position);
  }
  /// The sum to which the caller adds one micro-batch's gradient, by work in the same stream; positions rise.
  [[nodiscard]] SumLoan lend_sum(const Place& place, Progress& progress, std::uint64_t position);
  /// After the last one: all of it is in the lowest sum. Of a part of the ranks each maximal subtree has a sum, the
  /// first the lowest.
  void finish(const Place& place, Progress& progress);

 private:
  void advance(const Place& place, Progress& progress, std::uint64_t rank);
  void merge(const Place& place, unsigned number);

  device::Device& device_;
  const device::Stream stream_;
  plan::VirtualRanks ranks_{1, 1};
};

/// The sum of a subtree of ranks, in host memory.
struct Partial {
  plan::Subtree of;
  float* sum = nullptr;  ///< null: there is nothing of it, which is not added
};

/// The maximal subtrees that `parts`, neighbours in the order of ranks, make up. Adds their sums, of so many elements;
/// with 0 it says where they will lie. Each is where the first sum in it was; the others are overwritten.
std::vector<Partial> join_partials(std::span<const Partial> parts, std::uint64_t elements);

/// Adds the sums of all maximal subtrees of a step, in the order of ranks, as RankSums adds those of one process.
/// Returns where the whole lies, which is one of them; the others are overwritten. Null: there is none.
float* add_partials(std::span<const Partial> parts, std::uint64_t elements);

}  // namespace spillway::execute
