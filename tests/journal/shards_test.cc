// The journals of several shards, which vote: all of them come back at one step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/journal/shards_world.h"
#include "tests/nightly.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

using testing::ShardsWorld;
using testing::WorldSetup;

struct ShardTotals {
  std::uint64_t events = 0, restarts = 0, cut_off = 0, went_back = 0, half_opened = 0;
};

/// Runs worlds of two and three shards; the first thing found wrong. SPILLWAY_SEEDS=N: more of them.
std::string run_shards(WorldSetup setup, std::uint32_t seeds, ShardTotals& totals) {
  const char* more = std::getenv("SPILLWAY_SEEDS");
  if (more != nullptr) seeds = std::max(seeds, static_cast<std::uint32_t>(std::atoi(more)));
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    setup.seed = seed;
    setup.paths = 1 + seed % 2;
    ShardsWorld world(setup, 2 + seed / 2 % 2);
    const std::string wrong = world.run();
    if (!wrong.empty()) return text("seed ", seed, ": ", wrong);
    totals.events += world.events();
    totals.restarts += world.restarts();
    totals.cut_off += world.cut_off();
    totals.went_back += world.went_back();
    totals.half_opened += world.half_opened();
  }
  return {};
}

TEST(ShardsTest, EveryCutLeavesAllShardsAtOneStep) {
  ShardTotals totals;
  const auto seeds = spillway::testing::few_or(4U, 12U);
  EXPECT_EQ(run_shards({.steps = 8}, seeds, totals), "");
  EXPECT_GT(totals.events, seeds * 200);
  EXPECT_GT(totals.restarts, seeds);
  EXPECT_GT(totals.cut_off, 0U);
  EXPECT_GT(totals.went_back, 0U);
}

TEST(ShardsTest, EveryCutLeavesAllShardsAtOneCheckpoint) {
  ShardTotals totals;
  EXPECT_EQ(run_shards({.steps = 12, .durability = Durability::checkpoint, .constant = true},
                       spillway::testing::few_or(4U, 12U), totals),
            "");
  EXPECT_GT(totals.restarts, 4U);
  EXPECT_GT(totals.went_back, 0U);
}

TEST(ShardsTest, SyncsThatLieAreNoticed) {
  ShardTotals totals;
  EXPECT_NE(run_shards({.lying_syncs = true}, 3, totals), "");
}

}  // namespace
}  // namespace spillway::journal
