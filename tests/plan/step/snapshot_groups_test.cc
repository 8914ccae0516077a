// Neighbours that live on a device leave it together.
#include "spillway/plan/step/snapshot_groups.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

TEST(SnapshotGroups, HaveEveryChunkOfThisProcessThatLivesThereOnce) {
  std::mt19937 random(11);
  std::size_t together = 0;
  for (int round = 0; round < 40; ++round) {
    auto shape = test::random_shape(random, round);
    shape.virtual_ranks = 1 + round % 2;
    auto description = test::describe(shape);
    if (round % 2 == 1) description.world = {.size = 2, .rank = random() % 2};
    const auto layout = description.layout();
    const auto placement = test::random_device_placement(description, layout, random);
    const SnapshotGroups found(description, layout, placement, random() % (64 * KiB));
    std::vector<int> times(layout.chunks().size(), 0);
    for (const auto& group : found.groups()) {
      for (auto c = group.chunks.first; c < group.chunks.end(); ++c) {
        ++times[c];
        EXPECT_EQ(found.with_before(c), c > group.chunks.first);
        EXPECT_EQ(found.last_weight(c), group.chunks.end() - 1);
        EXPECT_GE(found.last_state(c), c);
        together += found.with_before(c) ? 1 : 0;
      }
      Bytes states = 0, sums = 0;
      for (auto c = group.chunks.first; c < group.chunks.end(); ++c) {
        states += state::state_bytes(description.rule(), layout.chunks()[c]);
        sums += found.state_bytes(c);
      }
      EXPECT_EQ(sums, states);
    }
    for (Index c = 0; c < times.size(); ++c) {
      const auto& chunk = layout.chunks()[c];
      const bool own = is_trainable(chunk.training) && description.has(layout, chunk);
      EXPECT_EQ(times[c], placement[c].device_resident() && own ? 1 : 0) << round;
    }
  }
  EXPECT_GT(together, 5U);
}

TEST(SnapshotGroups, WithoutADeviceThereAreNone) {
  std::mt19937 random(1);
  const auto description = test::describe({});
  const auto layout = description.layout();
  const SnapshotGroups none(description, layout, test::random_placement_of(layout, random), kGoodCopy);
  EXPECT_TRUE(none.groups().empty());
  EXPECT_FALSE(none.with_before(1));
  EXPECT_EQ(none.state_bytes(0), 0U);
}

}  // namespace
}  // namespace spillway::plan::step
