#include "spillway/storage/journal.h"

#include <gtest/gtest.h>

#include "tests/storage/journal_world.h"

namespace spillway::storage {
namespace {

using testing::World;
using testing::WorldSetup;

struct Totals {
  std::uint64_t events = 0, restarts = 0, checkpoints = 0;
};

/// Runs a world for every seed; the first thing found wrong.
std::string run(WorldSetup setup, std::uint32_t seeds, Totals& totals) {
  const char* more = std::getenv("SPILLWAY_SEEDS");
  if (more != nullptr) seeds = static_cast<std::uint32_t>(std::atoi(more));
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    setup.seed = seed;
    setup.paths = 1 + seed % 3;
    World world(setup);
    const std::string wrong = world.run();
    if (!wrong.empty()) return text("seed ", seed, ": ", wrong);
    totals.events += world.events();
    totals.restarts += world.restarts();
    totals.checkpoints += world.checkpoints_made();
  }
  return {};
}

TEST(JournalTest, EveryCutLeavesTheStepsThatWereReportedDurable) {
  Totals totals;
  EXPECT_EQ(run({}, 12, totals), "");
  EXPECT_GT(totals.events, 12 * 200u);
  EXPECT_GT(totals.restarts, 12u);
  EXPECT_GT(totals.checkpoints, 6u);
}

TEST(JournalTest, EveryCutLeavesTheLastCheckpoint) {
  Totals totals;
  EXPECT_EQ(run({.durability = Durability::checkpoint}, 12, totals), "");
  EXPECT_GT(totals.checkpoints, 6u);
}

TEST(JournalTest, SyncsThatLieAreNoticed) {
  Totals totals;
  EXPECT_NE(run({.lying_syncs = true}, 3, totals), "");
}

}  // namespace
}  // namespace spillway::storage
