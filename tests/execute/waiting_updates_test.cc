// Steps that chunks have left out: each takes its own, in their order, once.
#include "spillway/execute/waiting_updates.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway::execute {
namespace {

using plan::OnlyIf;

/// Chunk 0 is frozen, the updates of 1 and 2 wait, and that of 3 does not.
plan::Schedule schedule_of_four() {
  plan::Schedule out;
  out.add_chunks(4);
  for (plan::Index c = 1; c < 4; ++c) {
    out.update_task[c] = static_cast<plan::Index>(out.tasks.size());
    out.tasks.push_back({.op = plan::Op::update,
                         .lane = plan::Lane::update,
                         .what = {plan::ObjectKind::chunk, c},
                         .when = {.phase = plan::Phase::update, .only = c < 3 ? OnlyIf::due : OnlyIf::always}});
  }
  return out;
}

optim::Step numbered(std::int64_t number) {
  optim::Step out;
  out.step = number;
  return out;
}

std::vector<std::int64_t> numbers(const WaitingUpdates& updates, plan::Index chunk) {
  std::vector<std::int64_t> out;
  for (const auto& step : updates.list_steps(chunk)) out.push_back(step.step);
  return out;
}

TEST(WaitingUpdates, AreTakenOnceInTheOrderOfTheirSteps) {
  const auto schedule = schedule_of_four();
  WaitingUpdates updates(schedule);
  EXPECT_FALSE(updates.any());
  EXPECT_FALSE(updates.take(1));
  for (const auto number : {1, 2, 3}) updates.add(numbered(number));
  EXPECT_TRUE(updates.any());
  EXPECT_TRUE(updates.take(1));
  EXPECT_EQ(numbers(updates, 1), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_FALSE(updates.take(1));
  EXPECT_TRUE(updates.any());
  updates.add(numbered(4));
  EXPECT_TRUE(updates.take(1));
  EXPECT_EQ(numbers(updates, 1), std::vector<std::int64_t>{4});
  EXPECT_TRUE(updates.take(2));
  EXPECT_EQ(numbers(updates, 2), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_FALSE(updates.any());
}

TEST(WaitingUpdates, KeepNumbersWhenTakenStepsAreDropped) {
  const auto schedule = schedule_of_four();
  WaitingUpdates updates(schedule);
  for (std::int64_t number = 1; number < 100; ++number) {
    updates.add(numbered(number));
    ASSERT_TRUE(updates.take(1));
    ASSERT_EQ(numbers(updates, 1), std::vector<std::int64_t>{number});
    if (number % 10 != 0) continue;
    ASSERT_TRUE(updates.take(2));
    ASSERT_EQ(numbers(updates, 2).size(), 10U);
    ASSERT_EQ(numbers(updates, 2).back(), number);
  }
}

TEST(WaitingUpdates, AreNoneWithoutChunksThatWait) {
  plan::Schedule schedule;
  schedule.add_chunks(2);
  WaitingUpdates updates(schedule);
  updates.add(numbered(1));
  EXPECT_FALSE(updates.any());
}

}  // namespace
}  // namespace spillway::execute
