#include "research/study/flow.h"

#include <gtest/gtest.h>

#include <random>

#include "spillway/base/error.h"

namespace spillway::study {
namespace {

TEST(Flow, WorkThatUsesNothingIsSeconds) {
  Flow flow;
  const auto one = flow.add({.work = 2});
  const auto two = flow.add({.work = 3, .needs = {one}});
  const auto result = flow.play();
  EXPECT_DOUBLE_EQ(result.tasks[two].start, 2);
  EXPECT_DOUBLE_EQ(result.seconds, 5);
}

TEST(Flow, ConcurrentTasksShareAndWhoIsDoneLeavesItsPart) {
  Flow flow;
  const auto link = flow.add_resource({.name = "link", .rate = 10});
  const auto small = flow.add({.work = 10, .uses = {{link}}});
  const auto large = flow.add({.work = 30, .uses = {{link}}});
  const auto result = flow.play();
  EXPECT_DOUBLE_EQ(result.tasks[small].end, 2);  // 5 a second each
  EXPECT_DOUBLE_EQ(result.tasks[large].end, 4);  // then 10
  EXPECT_DOUBLE_EQ(result.used[link], 40);
}

TEST(Flow, TheSlowestResourceOfATaskBoundsItAndOthersTakeWhatItLeaves) {
  Flow flow;  // one card of 6, two links of 10: the first task is alone on its link, both share the card
  const auto card = flow.add_resource({.name = "card", .rate = 6});
  const auto link = flow.add_resource({.name = "link", .rate = 10});
  const auto other = flow.add_resource({.name = "other link", .rate = 10});
  const auto one = flow.add({.work = 6, .uses = {{card}, {link}}});
  const auto two = flow.add({.work = 6, .uses = {{card}, {other}}});
  const auto free = flow.add({.work = 7, .uses = {{link}}});
  const auto result = flow.play();
  EXPECT_DOUBLE_EQ(result.tasks[one].end, 2);
  EXPECT_DOUBLE_EQ(result.tasks[two].end, 2);
  // The link is filled to 10: 3 for the first task, which the card bounds, 7 for the third.
  EXPECT_DOUBLE_EQ(result.tasks[free].end, 1);
}

TEST(Flow, ALaneServesTheEarliestDeadlineOneAtATime) {
  Flow flow;
  const auto lane = flow.add_lane();
  const auto first = flow.add({.work = 1, .lane = lane, .deadline = 5});
  const auto late = flow.add({.work = 1, .lane = lane, .deadline = 9});
  const auto soon = flow.add({.work = 1, .lane = lane, .deadline = 2});
  const auto result = flow.play();
  EXPECT_DOUBLE_EQ(result.tasks[soon].end, 1);
  EXPECT_DOUBLE_EQ(result.tasks[first].end, 2);
  EXPECT_DOUBLE_EQ(result.tasks[late].end, 3);
}

TEST(Flow, ADriveHasAnotherRateWhileItReadsAndWrites) {
  const auto seconds = [](bool both) {
    Flow flow;  // a share of the drive's time: reads at 4, writes at 2, half of each at once 2 together
    const auto drive = flow.add_resource({.name = "drive", .rate = 1, .shared = 0.75});
    flow.add({.work = 8, .uses = {{drive, 1 / 4.0}}});
    if (both) flow.add({.work = 8, .uses = {{drive, 1 / 2.0, true}}});
    return flow.play().seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(false), 2);
  // At a share of 0.375 each: 1.5 read, 0.75 written a second; reads end at 5.33, with 4 written and 4 to go at 2.
  EXPECT_DOUBLE_EQ(seconds(true), 8 / 1.5 + 2);
}

TEST(Flow, TasksWithoutWorkTakeNoTimeAndKeepOrder) {
  Flow flow;
  const auto a = flow.add({.work = 1});
  const auto b = flow.add({.work = 0, .needs = {a}});
  const auto c = flow.add({.work = 0, .needs = {b}});
  const auto d = flow.add({.work = 1, .needs = {c}});
  const auto result = flow.play();
  EXPECT_DOUBLE_EQ(result.tasks[c].end, 1);
  EXPECT_DOUBLE_EQ(result.tasks[d].end, 2);
}

TEST(Flow, RefusesWhatCannotBePlayed) {
  Flow circle;
  circle.add({.work = 1, .needs = {1}});
  circle.add({.work = 1, .needs = {0}});
  EXPECT_THROW(static_cast<void>(circle.play()), Error);
  Flow rate;
  rate.add_resource({.name = "nothing"});
  EXPECT_THROW(static_cast<void>(rate.play()), Error);
  Flow missing;
  missing.add({.work = 1, .uses = {{3}}});
  EXPECT_THROW(static_cast<void>(missing.play()), Error);
}

/// Random machines: no resource gives more than it has, no dependency is broken, the same twice.
TEST(Flow, RandomGraphsKeepTheLaws) {
  std::mt19937 random(7);
  const auto draw = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 50; ++round) {
    Flow flow;
    for (int r = 0; r < 4; ++r) flow.add_resource({.name = "r", .rate = 1.0 + draw(9)});
    for (int l = 0; l < 3; ++l) flow.add_lane();
    for (int t = 0; t < 60; ++t) {
      FlowTask task{.work = static_cast<double>(draw(10)), .deadline = static_cast<std::uint64_t>(draw(60))};
      for (int u = draw(3); u >= 0; --u) {
        const auto r = static_cast<std::uint32_t>(draw(4));
        task.uses.push_back({r, 0.5 + draw(3), draw(2) == 0});
      }
      task.lane = draw(4) == 0 ? kNoLane : static_cast<std::uint32_t>(draw(3));
      for (int n = draw(3); n > 0 && t > 0; --n) task.needs.push_back(static_cast<std::uint32_t>(draw(t)));
      flow.add(task);
    }
    const auto result = flow.play(), again = flow.play();
    for (std::uint32_t t = 0; t < flow.tasks().size(); ++t) {
      EXPECT_EQ(result.tasks[t].end, again.tasks[t].end);
      EXPECT_LE(result.tasks[t].start, result.tasks[t].end);
      for (const auto need : flow.tasks()[t].needs) EXPECT_LE(result.tasks[need].end, result.tasks[t].start);
    }
    for (std::size_t r = 0; r < flow.resources().size(); ++r) {
      EXPECT_LE(result.used[r], result.seconds * flow.resources()[r].rate * (1 + 1e-6));
    }
  }
}

}  // namespace
}  // namespace spillway::study
