#include "spillway/state/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace spillway::state {
namespace {

TEST(Coverage, OfNothing) {
  Coverage coverage;
  EXPECT_EQ(coverage.first_gap(0), 0U);
  EXPECT_EQ(coverage.first_gap(5), 0U);
  EXPECT_TRUE(coverage.add(3, 3));
  EXPECT_EQ(coverage.first_gap(5), 0U);
}

TEST(Coverage, JoinsBothNeighbours) {
  Coverage coverage;
  EXPECT_TRUE(coverage.add(0, 2));
  EXPECT_TRUE(coverage.add(4, 6));
  EXPECT_EQ(coverage.first_gap(6), 2U);
  EXPECT_TRUE(coverage.add(2, 4));
  EXPECT_EQ(coverage.first_gap(6), 6U);
  EXPECT_EQ(coverage.first_gap(7), 6U);
}

TEST(Coverage, AgreesWithABitmapOnRandomIntervals) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    constexpr Bytes kSize = 40;
    Coverage coverage;
    std::vector<bool> there(kSize, false);
    for (int i = 0; i < 60; ++i) {
      Bytes begin = random() % (kSize + 1), end = random() % (kSize + 1);
      if (begin > end) std::swap(begin, end);
      end = std::min(end, begin + 6);
      const auto first = there.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = there.begin() + static_cast<std::ptrdiff_t>(end);
      const bool free = std::find(first, last, true) == last;
      ASSERT_EQ(coverage.add(begin, end), free);
      if (free) std::fill(first, last, true);
      const auto gap = std::find(there.begin(), there.end(), false) - there.begin();
      ASSERT_EQ(coverage.first_gap(kSize), static_cast<Bytes>(gap));
    }
  }
}

}  // namespace
}  // namespace spillway::state
