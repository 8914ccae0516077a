#include "spillway/machine/saturation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace spillway::machine {
namespace {

TEST(SaturationTest, StopsWhereMoreThreadsAreNoFaster) {
  std::vector<unsigned> tried;
  const auto found = saturate(64, [&](unsigned threads) {
    tried.push_back(threads);
    return std::min(10.0 * threads, 35.0);
  });
  EXPECT_EQ(found, (Saturation{.thread = 10, .most = 35, .threads = 4}));
  EXPECT_EQ(tried, (std::vector<unsigned>{1, 2, 4, 8}));
}

TEST(SaturationTest, TriesAllCpusAtLast) {
  const auto found = saturate(6, [](unsigned threads) { return 10.0 * threads; });
  EXPECT_EQ(found, (Saturation{.thread = 10, .most = 60, .threads = 6}));
}

TEST(SaturationTest, OneCpuIsSaturatedByOneThread) {
  EXPECT_EQ(saturate(1, [](unsigned) { return 7.0; }), (Saturation{.thread = 7, .most = 7, .threads = 1}));
}

TEST(SaturationTest, ThreadsThatHinderEachOtherAreNotCounted) {
  const auto found = saturate(8, [](unsigned threads) { return threads == 1 ? 10.0 : 4.0; });
  EXPECT_EQ(found, (Saturation{.thread = 10, .most = 10, .threads = 1}));
}

TEST(SaturationTest, WhatIsUnknownStaysSo) {
  EXPECT_EQ(saturate(8, [](unsigned) { return 0.0; }), Saturation{});
}

}  // namespace
}  // namespace spillway::machine
