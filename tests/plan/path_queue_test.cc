// What an urgent transfer waits for, and what it overtakes.
#include "spillway/plan/path_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace spillway::plan {
namespace {

constexpr double kMost = 16;

/// Bytes that moved until each transfer ended, when nothing is added any more.
std::map<std::size_t, double> drain(PathQueue& queue, double most = kMost) {
  std::map<std::size_t, double> out;
  double moved = 0;
  for (queue.hand_over(most); !queue.idle(); queue.hand_over(most)) {
    const auto bytes = queue.next_bytes();
    moved += bytes;
    if (const auto ended = queue.move(bytes)) out[*ended] = moved;
  }
  return out;
}

TEST(PathQueue, TheMostUrgentOfThoseThatWaitIsNext) {
  PathQueue queue;
  for (const std::size_t it : {3, 1, 2}) queue.add(it, it, 10, 0);
  EXPECT_EQ(drain(queue, 0), (std::map<std::size_t, double>{{1, 10}, {2, 20}, {3, 30}}));
}

TEST(PathQueue, AnUrgentOneWaitsForWhatIsInFlightAndNotForTheRest) {
  PathQueue queue;
  queue.add(9, 0, 100, kMost);
  EXPECT_EQ(queue.hand_over(kMost), std::vector<std::size_t>{0});
  EXPECT_EQ(queue.move(30), std::nullopt);
  queue.add(1, 1, 2, kMost);
  EXPECT_EQ(queue.hand_over(kMost), std::vector<std::size_t>{1}) << "the other one began before";
  EXPECT_EQ(drain(queue), (std::map<std::size_t, double>{{0, 72}, {1, 18}}));
}

TEST(PathQueue, NothingWaitsForLessThanIsInFlight) {
  PathQueue queue;
  queue.add(9, 0, 10, kMost);
  queue.add(1, 1, 2, kMost);
  EXPECT_EQ(drain(queue), (std::map<std::size_t, double>{{0, 10}, {1, 12}}));
}

TEST(PathQueue, WhatWasHandedOverSinceCounts) {
  PathQueue queue;
  queue.add(5, 0, 20, kMost);
  queue.add(6, 1, 100, kMost);
  queue.hand_over(kMost);
  EXPECT_EQ(queue.move(15), std::nullopt);  // so that 5 and 11 are in flight
  queue.add(1, 2, 3, kMost);
  EXPECT_EQ(drain(queue), (std::map<std::size_t, double>{{0, 5}, {1, 108}, {2, 19}}));
}

TEST(PathQueue, AnUrgentOneOvertakesNoneThatIsMoreUrgent) {
  PathQueue queue;
  queue.add(9, 0, 100, kMost);
  queue.hand_over(kMost);
  queue.add(2, 1, 40, kMost);
  queue.hand_over(kMost);
  queue.add(3, 2, 1, kMost);
  EXPECT_EQ(drain(queue), (std::map<std::size_t, double>{{0, 141}, {1, 56}, {2, 57}}));
}

TEST(PathQueue, EveryByteMovesOnceHoweverMuchMayBeInFlight) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    PathQueue queue;
    double all = 0, moved = 0;
    std::set<std::size_t> ended;
    const auto move = [&](double share) {
      queue.hand_over(static_cast<double>(random() % 40));
      if (queue.idle()) return;
      const auto bytes = share * queue.next_bytes();
      moved += bytes;
      const auto end = queue.move(bytes);
      if (end) {
        EXPECT_TRUE(ended.insert(*end).second) << *end << " ended twice";
      }
    };
    for (std::size_t it = 0; it < 30; ++it) {
      const auto bytes = static_cast<double>(1 + random() % 50);
      all += bytes;
      queue.add(random() % 10, it, bytes, static_cast<double>(random() % 40));
      move(static_cast<double>(random() % 4) / 3);
    }
    for (int turn = 0; queue.any() && turn < 1000; ++turn) move(1);
    EXPECT_EQ(ended.size(), 30U);
    EXPECT_NEAR(moved, all, 0.1);
  }
}

}  // namespace
}  // namespace spillway::plan
