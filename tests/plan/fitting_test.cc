// Inner decisions are laid out and simulated once each, and the best of them is marked in the list.
#include "spillway/plan/fitting.h"

#include <gtest/gtest.h>

#include "spillway/plan/search.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

class FittingTest : public ::testing::Test {
 protected:
  test::Case it_ = test::Case().with_path();
  const Problem problem_ = it_.problem();
  const Units units_{problem_};
};

TEST_F(FittingTest, APlanWithoutRoomLeavesThePlanBefore) {
  const Bytes least = smallest_arena(problem_);
  const Room room{.arena = least};
  FittingComparison comparison({problem_, units_, room, 1});
  const Fitting all{.kept = units_.free()};
  ASSERT_TRUE(comparison.lay_out({}));
  EXPECT_TRUE(comparison.ample());
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(comparison.lay_out(all));
    EXPECT_GT(comparison.arena_bytes(all), least);
    EXPECT_FALSE(comparison.ample());
  }
  EXPECT_EQ(comparison.take().arena, least);
}

TEST_F(FittingTest, TheListHasEachValueOnceAndMarksThatOfTheBestPlan) {
  const Room room{.arena = 1 * GiB};
  FittingComparison comparison({problem_, units_, room, 1});
  const Fitting none{.level = 1}, all{.level = 1, .kept = units_.free()};
  EXPECT_TRUE(comparison.add(none));
  EXPECT_FALSE(comparison.add(none)) << "it is no better than itself";
  EXPECT_TRUE(comparison.add(all));
  EXPECT_EQ(comparison.best_values(), all);
  comparison.list(Axis::lookahead, none);
  comparison.list(Axis::lookahead, all);
  comparison.list(Axis::lookahead, all);
  const auto listed = comparison.take_compared();
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_FALSE(listed[0].chosen);
  EXPECT_TRUE(listed[1].chosen);
  EXPECT_EQ(listed[0].step_seconds, comparison.predict(none).step_seconds);
}

TEST_F(FittingTest, AListedPlanHasItsOwnTrafficWhateverWasLaidOutLater) {
  const Room room{.arena = 1 * GiB};
  FittingComparison comparison({problem_, units_, room, 1});
  const Fitting none{.level = 1}, all{.level = 1, .kept = units_.free()};
  comparison.add(none);
  comparison.add(all);
  comparison.list(Axis::lookahead, none);
  comparison.list(Axis::lookahead, all);
  const auto listed = comparison.take_compared();
  EXPECT_GT(listed[0].moved, 0U);
  EXPECT_EQ(listed[1].moved, 0U);
}

}  // namespace
}  // namespace spillway::plan
