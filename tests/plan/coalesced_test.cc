// Neighbours that are copied together.
#include "spillway/plan/coalesced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

TEST(Coalesced, CoversAllChunksInOrderAndIsLargeWhereItCanBe) {
  std::mt19937 random(17);
  for (int round = 0; round < 500; ++round) {
    std::vector<Bytes> sizes(1 + random() % 12);
    for (auto& size : sizes) size = 1 + random() % 20;
    const Index first = random() % 5;
    const auto split = static_cast<Index>(first + random() % (2 * sizes.size()));
    const Bytes coalesce_to = random() % 30;
    const auto of = [&](Index c) { return sizes[c - first]; };
    const auto out =
        coalesce({first, static_cast<Index>(sizes.size())}, coalesce_to, of, [&](Index c) { return c == split; });
    auto next = first;
    Bytes at = 0;
    for (const auto& it : out) {
      ASSERT_EQ(it.chunks.first, next) << round;
      ASSERT_EQ(it.at, at) << round;
      Bytes sum = 0;
      for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
        sum += of(c);
        ASSERT_FALSE(c == split && c != it.chunks.first) << round;
      }
      ASSERT_EQ(it.bytes, sum) << round;
      next = it.chunks.end();
      at += it.bytes;
      const bool alone = out.size() == 1 || next == split || it.chunks.first == split;
      ASSERT_TRUE(it.bytes >= coalesce_to || alone) << round;
    }
    ASSERT_EQ(next, first + sizes.size()) << round;
  }
}

TEST(Coalesced, SnapshotGroupsAreOfOneBlockAndHoldAllThatIsResidentAndTrainable) {
  std::mt19937 random(23);
  std::size_t several = 0;
  for (int round = 0; round < 60; ++round) {
    auto shape = test::random_shape(random, round);
    if (round % 3 == 0) test::freeze_some(shape, random);
    const auto description = test::describe(shape);
    const auto layout = description.layout();
    const auto rule = description.rule();
    Placement placement(layout);
    for (const auto& block : layout.blocks()) {
      const bool lives = random() % 2 == 0;
      for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
        if (!can_be_on_device(description, layout, static_cast<Index>(c))) continue;
        if (block.role == state::BlockRole::layer ? lives : random() % 2 == 0) placement.chunks[c].live_on_device();
      }
    }
    const Bytes coalesce_to = random() % (64 * KiB);
    std::vector<int> seen(layout.chunks().size());
    for (const auto& group : snapshot_groups(description, layout, placement, coalesce_to)) {
      several += group.chunks.count > 1 ? 1 : 0;
      const auto& block = layout.blocks()[layout.chunks()[group.chunks.first].block];
      EXPECT_TRUE(block.role == state::BlockRole::layer || group.chunks.count == 1) << round;
      EXPECT_LE(group.chunks.end(), block.first_chunk + block.trainable_chunks) << round;
      Index state = group.chunks.first;
      for (const auto& it : group.states) {
        EXPECT_EQ(it.chunks.first, state) << round;
        state = it.chunks.end();
        Bytes bytes = 0;
        for (auto c = it.chunks.first; c < it.chunks.end(); ++c) bytes += state_bytes(rule, layout.chunks()[c]);
        EXPECT_EQ(it.bytes, bytes) << round;
      }
      EXPECT_EQ(state, group.chunks.end()) << round;
      for (auto c = group.chunks.first; c < group.chunks.end(); ++c) ++seen[c];
    }
    for (Index c = 0; c < seen.size(); ++c) {
      EXPECT_EQ(seen[c] == 1, placement[c].device_resident() && is_trainable(layout.chunks()[c].training))
          << round << ": " << c;
    }
  }
  EXPECT_GT(several, 20U);
}

}  // namespace
}  // namespace spillway::plan
