// What crosses the link: all of it, and what is due first comes first.
#include "spillway/execute/crossing.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::Planned;

TEST(Crossing, NothingCrossesWithoutADevice) {
  EXPECT_TRUE(crossing_offsets(Planned().plan.schedule).empty());
}

TEST(Crossing, CopiesComeByTheirDeadlines) {
  const Planned planned({.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0, .device = true});
  const auto& schedule = planned.plan.schedule;
  const auto found = crossing_offsets(schedule);
  std::multiset<Bytes> expected;
  const plan::Task* earliest = nullptr;
  for (const auto& task : schedule.tasks) {
    if (!is_link(task.lane) || task.bytes == 0) continue;
    const auto first = schedule.buffers[task.on_host().buffer].offset + task.on_host().offset;
    expected.insert(first);
    expected.insert(first + task.bytes - 1);
    if (earliest == nullptr || task.deadline < earliest->deadline) earliest = &task;
  }
  ASSERT_NE(earliest, nullptr);
  EXPECT_EQ(std::multiset<Bytes>(found.begin(), found.end()), expected);
  EXPECT_EQ(found[0], schedule.buffers[earliest->on_host().buffer].offset + earliest->on_host().offset);
  EXPECT_EQ(found[1], found[0] + earliest->bytes - 1);
  for (const auto offset : found) EXPECT_LT(offset, planned.plan.arena);
}

}  // namespace
}  // namespace spillway::execute
