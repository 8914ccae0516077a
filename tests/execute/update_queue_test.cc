// The order in which the updates of a lane begin.
#include "spillway/execute/update_queue.h"

#include <gtest/gtest.h>

namespace spillway::execute {
namespace {

UpdateQueue::Entry make_entry(std::uint64_t deadline, plan::Index task, bool early = false) {
  return {deadline, {.instance = 1, .task = task}, early};
}

TEST(UpdateQueue, EarliestDeadlineBeginsFirst) {
  UpdateQueue queue;
  queue.push(make_entry(5, 0), false);
  queue.push(make_entry(3, 1), false);
  queue.push(make_entry(4, 2), false);
  EXPECT_EQ(queue.pop(false).task, 1U);
  EXPECT_EQ(queue.pop(false).task, 2U);
  EXPECT_EQ(queue.pop(false).task, 0U);
  EXPECT_FALSE(queue.has_task(true));
}

TEST(UpdateQueue, IdlePriorityBeginsWhileTheCallerWaits) {
  UpdateQueue queue;
  queue.push(make_entry(1, 0), true);
  EXPECT_TRUE(queue.has_idle_priority());
  EXPECT_FALSE(queue.has_task(false));
  queue.push(make_entry(2, 1), false);
  EXPECT_EQ(queue.pop(false).task, 1U);
  queue.push(make_entry(2, 2), false);
  EXPECT_EQ(queue.pop(true).task, 0U);
  EXPECT_EQ(queue.pop(true).task, 2U);
}

TEST(UpdateQueue, EarlyUpdateIsTakenOutAndTheOthersKeepTheirOrder) {
  UpdateQueue queue;
  for (const plan::Index task : {4, 1, 3, 0, 2}) queue.push(make_entry(task, task, task == 0), false);
  EXPECT_EQ(queue.take_early()->task, 0U);
  EXPECT_FALSE(queue.take_early());
  for (plan::Index task = 1; task < 5; ++task) EXPECT_EQ(queue.pop(false).task, task);
}

}  // namespace
}  // namespace spillway::execute
