#include "spillway/plan/trial.h"

#include <gtest/gtest.h>

#include "spillway/plan/search.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

TEST(Room, IsWhatTheProcessLeavesOfTheBudget) {
  test::Case it;
  it.budget.process = 100 * MiB;
  it.budget.work = 50 * MiB;
  const auto room = room_of(it.problem(), 10 * MiB);
  EXPECT_EQ(room.fixed, 150 * MiB + kEngineBytes) << "a device's own arena takes nothing of it";
  EXPECT_EQ(room.arena, it.budget.dram - room.fixed);
  it.budget.device = DeviceTier{.capacity = GiB, .in_dram = true};
  EXPECT_EQ(room_of(it.problem(), 10 * MiB).fixed, room.fixed + 10 * MiB);
  it.budget.dram = 1 * MiB;
  EXPECT_EQ(room_of(it.problem(), 0).arena, 0U);
}

TEST(Trial, KeepsTheLastPlacementThatHadRoom) {
  const auto it = test::Case().with_path();
  const auto problem = it.problem();
  const Units units(problem);
  const auto ahead = lookahead_at(problem, 0, 1);
  Trial measure(problem, {.arena = 1 * GiB});
  ASSERT_TRUE(measure.lay_out(units.place(units.free()), ahead));
  EXPECT_TRUE(measure.ample());
  const auto whole = measure.last().arena;

  Trial trial(problem, {.arena = whole - 1});
  ASSERT_TRUE(trial.lay_out(units.place(0), ahead));
  const auto least = trial.last().arena;
  EXPECT_LT(least, whole);
  EXPECT_TRUE(trial.ample());
  EXPECT_FALSE(trial.lay_out(units.place(units.free()), ahead));
  EXPECT_EQ(trial.last().arena, least);
  EXPECT_FALSE(trial.ample());
  EXPECT_GT(trial.step_seconds(), 0);
}

TEST(Trial, NodesAreEachBounded) {
  auto it = test::Case();
  it.budget.nodes = {{.id = 0, .capacity = 1 * GiB}, {.id = 1, .capacity = 1 * GiB}};
  it.rates.nodes = {{.update = 1e8, .update_thread = 1e8}, {.update = 1e8, .update_thread = 1e8}};
  const auto problem = it.problem();
  const Units units(problem);
  const DistributionPolicy both{.nodes = {0, 1}};
  for (const Bytes second : {1 * GiB, Bytes{0}}) {
    Trial trial(problem, {.arena = 1 * GiB, .nodes = {4 * MiB, second}});
    trial.distribute_by(&both);
    EXPECT_EQ(trial.lay_out(units.place(0), lookahead_at(problem, 0, 1)), second > 0);
  }
}

}  // namespace
}  // namespace spillway::plan
