// Virtual ranks: in which order the gradients of a step's micro-batches are added, whichever processes made them.
//
// Micro-batch i of a step belongs to virtual rank i mod V, and a step takes its micro-batches rank by rank: its order
// is 0, V, 2 V ..., 1, V + 1 .... Each rank adds its own in order in fp32. The ranks' sums are added as an aligned
// binary tree, ((0 + 1) + (2 + 3)) + ..., and the result is rounded once. A process has contiguous ranks, so what it
// can add by itself are whole subtrees, and any number of processes up to V gives the same bits.
//
// The tree is built from a stack of sums, each of a maximal aligned subtree of the ranks so far. For ranks from 0 on
// that is as a counter counts: where rank r ends, there is one sum for each bit of r + 1 that is set, so log2(V) + 1
// sums are enough. A process whose ranks begin elsewhere is left with a sum for each of its maximal subtrees; whoever
// owns the gradient goes on with those of all processes, in the order of ranks, by the same rule.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace spillway::plan {

/// Ranks [first, first + size), whose size is a power of two that divides `first`.
struct Subtree {
  std::uint64_t first = 0, size = 1;
  friend bool operator==(const Subtree&, const Subtree&) = default;
};

/// The largest subtree that begins with rank `first` and ends with rank `end` - 1 at most; first < end.
[[nodiscard]] constexpr Subtree subtree_from(std::uint64_t first, std::uint64_t end) noexcept {
  const auto most = std::bit_floor(end - first), aligned = first & (~first + 1);
  return {first, first == 0 ? most : std::min(aligned, most)};
}

/// Maximal subtrees that ranks [first, end) consist of.
[[nodiscard]] constexpr unsigned subtrees(std::uint64_t first, std::uint64_t end) noexcept {
  unsigned out = 0;
  for (; first < end; ++out) first += subtree_from(first, end).size;
  return out;
}

/// The virtual ranks of one step, or those of one process. Ranks without a micro-batch take no part.
class VirtualRanks {
 public:
  /// Both > 0. All ranks of the step.
  constexpr VirtualRanks(std::uint64_t ranks, std::uint64_t micro_batches) noexcept
      : count_(std::min(ranks, micro_batches)),
        each_(micro_batches / count_),
        more_(micro_batches % count_),
        end_(count_) {}
  /// Ranks of process `rank` among `size`, which may be none.
  [[nodiscard]] constexpr VirtualRanks restrict_to(std::uint64_t rank, std::uint64_t size) const noexcept {
    auto out = *this;
    out.first_ = rank * count_ / size;
    out.end_ = (rank + 1) * count_ / size;
    return out;
  }
  /// The process among `size` that has the first of them.
  [[nodiscard]] constexpr std::uint64_t process_of_first(std::uint64_t size) const noexcept {
    return (size - 1) / count_;
  }

  /// Ranks that have a micro-batch: the first so many.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  /// The process has the ranks [first, end).
  [[nodiscard]] constexpr std::uint64_t first() const noexcept { return first_; }
  [[nodiscard]] constexpr std::uint64_t end() const noexcept { return end_; }
  /// The position in the step's order at which a rank begins.
  [[nodiscard]] constexpr std::uint64_t position_of(std::uint64_t rank) const noexcept {
    return rank * each_ + std::min(rank, more_);
  }
  /// The rank of the micro-batch at a position of the step's order.
  [[nodiscard]] constexpr std::uint64_t rank_of(std::uint64_t position) const noexcept {
    const auto of_larger = more_ * (each_ + 1);
    return position < of_larger ? position / (each_ + 1) : more_ + (position - of_larger) / each_;
  }
  /// True if the micro-batch at a position is the first of its rank.
  [[nodiscard]] constexpr bool begins(std::uint64_t position) const noexcept {
    return position == 0 || rank_of(position) != rank_of(position - 1);
  }
  /// The sum, counted from the bottom, to which a rank adds its micro-batches.
  [[nodiscard]] constexpr unsigned sum_of(std::uint64_t rank) const noexcept { return subtrees(first_, rank); }
  /// How often, where a subtree ends, the topmost sum is added to the one below it.
  [[nodiscard]] constexpr unsigned merges(const Subtree& it) const noexcept {
    return subtrees(first_, it.first) + 1 - subtrees(first_, it.first + it.size);
  }
  /// Sums that there are at once, at most.
  [[nodiscard]] constexpr unsigned sums() const noexcept {
    if (first_ == 0 && end_ == count_) return static_cast<unsigned>(std::bit_width(count_));
    unsigned most = 0;
    for (auto rank = first_; rank < end_; ++rank) most = std::max(most, sum_of(rank) + 1);
    return most;
  }
  /// Maximal subtrees that the process's ranks consist of, each of which leaves a sum.
  [[nodiscard]] constexpr unsigned partials() const noexcept { return subtrees(first_, end_); }

 private:
  std::uint64_t count_;
  std::uint64_t each_, more_;  ///< micro-batches of a rank; the first `more_` ranks have one more
  std::uint64_t first_ = 0, end_;
};

/// Sums that a process among `size` has at once, at most, in a step of at most so many micro-batches.
[[nodiscard]] constexpr unsigned most_sums(std::uint64_t ranks, std::uint64_t micro_batches, std::uint64_t size) {
  unsigned most = 0;
  for (auto count = std::min(ranks, micro_batches); count > 0; --count) {
    for (std::uint64_t rank = 0; rank < size; ++rank) {
      most = std::max(most, VirtualRanks(count, count).restrict_to(rank, size).sums());
    }
  }
  return most;
}

/// Sums of subtrees that one of `members` processes is sent by the others, at most: of processes [m * members,
/// (m + 1) * members) among `size`, for whichever m.
[[nodiscard]] constexpr unsigned most_received(std::uint64_t ranks, std::uint64_t micro_batches, std::uint64_t size,
                                               std::uint64_t members) {
  unsigned most = 0;
  for (auto count = std::min(ranks, micro_batches); count > 0; --count) {
    for (std::uint64_t begin = 0; begin < size; begin += members) {
      unsigned all = 0, least = ~0U;
      for (auto rank = begin; rank < begin + members; ++rank) {
        const auto partials = VirtualRanks(count, count).restrict_to(rank, size).partials();
        all += partials;
        least = std::min(least, partials);
      }
      most = std::max(most, all - least);
    }
  }
  return most;
}

}  // namespace spillway::plan
