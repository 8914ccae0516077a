// Virtual ranks: in which order the gradients of a step's micro-batches are added, whichever processes made them.
//
// Micro-batch i of a step belongs to virtual rank i mod V, and a step takes its micro-batches rank by rank: its order
// is 0, V, 2 V ..., 1, V + 1 .... Each rank adds its own in order in fp32. The ranks' sums are added as an aligned
// binary tree, ((0 + 1) + (2 + 3)) + ..., and the result is rounded once. A process has contiguous ranks, so what it
// can add by itself are whole subtrees, and any number of processes up to V gives the same bits.
//
// The tree is built as a counter counts: where rank r ends, there is one sum for each bit of r + 1 that is set, the
// largest subtree at the bottom. So log2(V) + 1 sums are enough.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace spillway::plan {

/// The ranks of one step. Those without a micro-batch take no part.
class VirtualRanks {
 public:
  /// Both > 0.
  constexpr VirtualRanks(std::uint64_t ranks, std::uint64_t micro_batches) noexcept
      : count_(std::min(ranks, micro_batches)), each_(micro_batches / count_), more_(micro_batches % count_) {}

  /// Ranks that have a micro-batch: the first so many.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  /// The rank of the micro-batch at a position of the step's order.
  [[nodiscard]] constexpr std::uint64_t rank_of(std::uint64_t position) const noexcept {
    const auto of_larger = more_ * (each_ + 1);
    return position < of_larger ? position / (each_ + 1) : more_ + (position - of_larger) / each_;
  }
  /// Whether its rank begins with it.
  [[nodiscard]] constexpr bool begins(std::uint64_t position) const noexcept {
    return position == 0 || rank_of(position) != rank_of(position - 1);
  }
  /// The sum, counted from the bottom, to which a rank adds its micro-batches.
  [[nodiscard]] static constexpr unsigned sum_of(std::uint64_t rank) noexcept {
    return static_cast<unsigned>(std::popcount(rank));
  }
  /// How often, where a rank ends, the topmost sum is added to the one below it.
  [[nodiscard]] static constexpr unsigned merges(std::uint64_t rank) noexcept {
    return static_cast<unsigned>(std::countr_one(rank));
  }
  /// Sums that there are at once, at most.
  [[nodiscard]] constexpr unsigned sums() const noexcept { return static_cast<unsigned>(std::bit_width(count_)); }

 private:
  std::uint64_t count_;
  std::uint64_t each_, more_;  ///< micro-batches of a rank; the first `more_` ranks have one more
};

}  // namespace spillway::plan
