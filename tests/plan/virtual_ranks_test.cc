#include "spillway/plan/virtual_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

TEST(VirtualRanks, HaveMicroBatchIOfTheDataAtIModuloTheirNumber) {
  for (std::uint64_t ranks = 1; ranks < 12; ++ranks) {
    for (std::uint64_t micro_batches = 1; micro_batches < 30; ++micro_batches) {
      const VirtualRanks found(ranks, micro_batches);
      EXPECT_EQ(found.count(), std::min(ranks, micro_batches));
      std::uint64_t position = 0;
      for (std::uint64_t rank = 0; rank < found.count(); ++rank) {
        for (auto number = rank; number < micro_batches; number += ranks, ++position) {
          EXPECT_EQ(found.rank_of(position), rank) << ranks << " ranks, " << micro_batches << " micro-batches";
          EXPECT_EQ(found.begins(position), number == rank);
        }
      }
      EXPECT_EQ(position, micro_batches);
    }
  }
}

/// What is added to what, in words.
std::string words_of_tree(std::uint64_t first, std::uint64_t count) {
  if (count == 1) return std::to_string(first);
  const auto half = std::bit_ceil(count) / 2;
  return "(" + words_of_tree(first, half) + "+" + words_of_tree(first + half, count - half) + ")";
}

TEST(VirtualRanks, AreMergedToAnAlignedTreeWithinTheirSums) {
  for (std::uint64_t count = 1; count < 70; ++count) {
    const VirtualRanks ranks(count, 3 * count);
    std::vector<std::string> sums;
    const auto merge = [&] {
      const auto top = sums.back();
      sums.pop_back();
      sums.back() = "(" + sums.back() + "+" + top + ")";
    };
    for (std::uint64_t rank = 0; rank < count; ++rank) {
      ASSERT_EQ(ranks.sum_of(rank), sums.size());
      sums.push_back(std::to_string(rank));
      EXPECT_LE(sums.size(), ranks.sums());
      for (auto merges = ranks.merges({rank, 1}); merges > 0; --merges) merge();
    }
    while (sums.size() > 1) merge();
    EXPECT_EQ(sums.front(), words_of_tree(0, count));
  }
}

TEST(VirtualRanks, OfProcessesCoverTheStepInOrder) {
  for (std::uint64_t ranks = 1; ranks < 9; ++ranks) {
    for (std::uint64_t micro_batches = 1; micro_batches < 20; ++micro_batches) {
      for (std::uint64_t size = 1; size <= ranks; ++size) {
        const VirtualRanks all(ranks, micro_batches);
        std::uint64_t next = 0;
        unsigned partials = 0, own = 0;
        for (std::uint64_t rank = 0; rank < size; ++rank) {
          const auto found = all.restrict_to(rank, size);
          EXPECT_EQ(found.position_of(found.first()), next);
          EXPECT_EQ(found.first() < found.end() && next == 0, rank == all.process_of_first(size));
          next = found.position_of(found.end());
          EXPECT_LE(found.sums(), size == 1 ? all.sums() : most_sums(ranks, micro_batches, size));
          partials += own = found.partials();
          for (auto first = found.first(); first < found.end(); --own) {
            const auto subtree = subtree_from(first, found.end());
            EXPECT_EQ(subtree.first % subtree.size, 0U);
            first += subtree.size;
          }
          EXPECT_EQ(own, 0U);
        }
        EXPECT_EQ(next, micro_batches);
        EXPECT_LE(partials, most_received(ranks, micro_batches, size, size) + all.sums());
      }
    }
  }
}

TEST(VirtualRanks, TakeASumForEachLevelOfTheTreeBesideAGradient) {
  auto description = test::describe({.micro_batches = 8});
  EXPECT_EQ(description.gradient_sums(), 1U);
  description.virtual_ranks = 4;
  EXPECT_EQ(description.gradient_sums(), 3U);
  EXPECT_EQ(description.layout().shards(), 4U);
  description.weight_dtype = state::ComputeType::fp32;
  EXPECT_EQ(description.gradient_sums(), 2U) << "the lowest lies in the gradient";
  description.virtual_ranks = 1;
  EXPECT_EQ(description.gradient_sums(), 0U);
  description = test::describe({.micro_batches = 1});
  description.virtual_ranks = 4;
  EXPECT_EQ(description.gradient_sums(), 0U) << "of a single micro-batch";
}

}  // namespace
}  // namespace spillway::plan
