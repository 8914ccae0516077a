// What a run goes on from when another number of processes goes on with it.
#include "spillway/journal/lines.h"

#include <gtest/gtest.h>

#include "tests/journal/redeal_world.h"
#include "tests/nightly.h"

namespace spillway::journal {
namespace {

using Kind = WayOn::Kind;

/// Shards of one line that have these steps.
std::vector<FoundShard> shards(const KeptLine& line, const std::vector<std::int64_t>& steps) {
  std::vector<FoundShard> out;
  for (std::uint32_t shard = 0; shard < steps.size(); ++shard) {
    out.push_back({line.world, shard, {steps[shard], line.number}});
  }
  return out;
}
std::vector<FoundShard> operator+(std::vector<FoundShard> a, const std::vector<FoundShard>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

WayOn go_on(const RunLines& lines, const std::vector<FoundShard>& found, std::uint32_t world) {
  return way_on(lines, found, world);
}

constexpr KeptLine kTwo{7, 2}, kThree{8, 3}, kOne{0, 1};

TEST(Lines, AnotherNumberGoesOnFromTheLastStepThatAllHave) {
  const auto way = go_on({kTwo}, shards(kTwo, {5, 4}), 3);
  EXPECT_EQ(way.kind, Kind::redeal);
  EXPECT_EQ(way.line, kTwo);
  EXPECT_EQ(way.step, 4);
  EXPECT_EQ(go_on({kTwo}, shards(kTwo, {5, 4}), 2).kind, Kind::open);
  EXPECT_EQ(go_on({kOne}, shards(kOne, {5}), 2).kind, Kind::redeal);
  EXPECT_EQ(go_on({kTwo}, shards(kTwo, {5, 4}), 1).kind, Kind::redeal);
}

TEST(Lines, AShardThatNobodyReachesIsNamed) {
  const auto way = go_on({kThree}, {{3, 1, {4, 8}}}, 2);
  EXPECT_EQ(way.kind, Kind::missing);
  EXPECT_EQ(way.line, kThree);
  EXPECT_EQ(way.missing, (std::vector<std::uint32_t>{0, 2}));
  // What another line has left under its name is not it.
  EXPECT_EQ(go_on({kTwo}, {{2, 0, {4, 7}}, {2, 1, {9, 6}}}, 3).missing, std::vector<std::uint32_t>{1});
}

TEST(Lines, ALineThatHasNoStepYetIsNone) {
  EXPECT_EQ(go_on({kTwo}, {}, 3).kind, Kind::nothing);
  EXPECT_EQ(go_on({kTwo}, shards(kTwo, {kNoStep, 0}), 3).kind, Kind::nothing);
  EXPECT_EQ(go_on({kTwo}, {{2, 0, {kNoStep, 7}}, {2, 1, {4, 6}}}, 3).kind, Kind::nothing);
}

TEST(Lines, WhileItIsChangedEitherIsGoneOnFrom) {
  const RunLines both{kThree, kTwo};
  const auto old = shards(kTwo, {4, 4}), half = shards(kThree, {4, kNoStep, 4}), all = shards(kThree, {4, 4, 4});
  for (const auto& found : {old, old + half, half + old}) {
    EXPECT_EQ(go_on(both, found, 3).kind, Kind::redeal);
    EXPECT_EQ(go_on(both, found, 3).line, kTwo);
    EXPECT_EQ(go_on(both, found, 2).kind, Kind::open);
    EXPECT_EQ(go_on(both, found, 2).line, kTwo);
    EXPECT_EQ(go_on(both, found, 1).line, kTwo);
  }
  const std::vector<FoundShard> rest{old[1]};
  for (const auto& found : {all, all + rest}) {
    EXPECT_EQ(go_on(both, found, 3).kind, Kind::open);
    EXPECT_EQ(go_on(both, found, 3).line, kThree);
    EXPECT_EQ(go_on(both, found, 2).kind, Kind::redeal);
    EXPECT_EQ(go_on(both, found, 2).line, kThree);
  }
  EXPECT_EQ(go_on(both, rest + half, 3).line, kTwo);
  EXPECT_EQ(go_on(both, rest + half, 3).missing, std::vector<std::uint32_t>{0});
  EXPECT_EQ(go_on(both, {all[0], all[2]}, 1).line, kThree);
  EXPECT_EQ(go_on(both, {all[0], all[2]}, 1).missing, std::vector<std::uint32_t>{1});
}

TEST(Lines, EveryCutLeavesTheOldShardsOrTheNewOnesWhole) {
  std::uint64_t events = 0, redeals = 0, settled = 0, restored = 0, taken_up = 0;
  const auto seeds = spillway::testing::few_or(4U, 60U);
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    testing::RedealWorld world({.seed = seed, .paths = 1 + seed % 2, .chunks = 6, .steps = 6});
    ASSERT_EQ(world.run(), "") << "seed " << seed;
    events += world.events();
    redeals += world.redeals();
    settled += world.settled();
    restored += world.restored();
    taken_up += world.taken_up();
  }
  EXPECT_GT(events, seeds * 100);
  EXPECT_GT(redeals, seeds / 2);
  EXPECT_GT(settled, 0U);
  EXPECT_GT(restored + taken_up, 0U);
  if (seeds < 20) return;  // each of the two is rare
  EXPECT_GT(restored, 0U);
  EXPECT_GT(taken_up, 0U);
}

}  // namespace
}  // namespace spillway::journal
