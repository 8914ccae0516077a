#include "spillway/execute/pace.h"

#include <gtest/gtest.h>

namespace spillway::execute {
namespace {

TEST(Pace, IsTheRateWhateverTheWorkTakes) {
  Pace pace(100);
  double at = 5;
  for (int i = 0; i < 1000; ++i) at = pace.end(at, 2);
  EXPECT_NEAR(at, 5 + 20, 2e-3);
}

TEST(Pace, WhoComesLateByALittleCatchesUpAndWhoWasAwayDoesNot) {
  Pace pace(100);
  double at = 0;
  for (int i = 0; i < 1000; ++i) at = pace.end(at + 1e-4, 2);
  EXPECT_NEAR(at, 20, 2e-3);
  EXPECT_NEAR(pace.end(100, 2), 100.02, 2e-3);
}

TEST(Pace, HasNoLimitByDefault) {
  EXPECT_FALSE(Pace().limits());
  EXPECT_TRUE(Pace(1).limits());
}

}  // namespace
}  // namespace spillway::execute
