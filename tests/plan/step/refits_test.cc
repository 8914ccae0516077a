// A background refit joins the gradient that a pass has left before an update reads it.
#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

Schedule refit_schedule(bool on_device, const Redo& redo = {}) {
  const auto description = test::describe({.layers = 2, .subspace = "up|down"});
  const auto layout = description.layout();
  auto placement = test::placement_of(layout);
  placement.device = on_device;
  for (Index c = 0; on_device && c < layout.chunks().size(); ++c) {
    if (can_be_on_device(description, layout, c)) placement.chunks[c].live_on_device();
  }
  return make_schedule(description, layout, placement, {}, redo);
}

bool follows(const Schedule& schedule, Index task, Index on) {
  return std::ranges::any_of(schedule.tasks[task].needs, [&](const auto& it) { return it.task == on; });
}

std::vector<Index> refitted(const Schedule& schedule) {
  std::vector<Index> out;
  for (Index c = 0; c < schedule.refit_task.size(); ++c) {
    if (schedule.refit_task[c] != kNone) out.push_back(c);
  }
  return out;
}

TEST(Refits, OnTheHostComeBetweenThePassAndTheUpdate) {
  const auto schedule = refit_schedule(false);
  ASSERT_FALSE(refitted(schedule).empty());
  for (const auto c : refitted(schedule)) {
    const auto refit = schedule.refit_task[c];
    EXPECT_TRUE(follows(schedule, schedule.update_task[c], refit)) << "chunk " << c;
    EXPECT_EQ(schedule.tasks[refit].to.buffer, schedule.groups[c].grad.buffer);
    EXPECT_GT(schedule.tasks[refit].to.offset, schedule.groups[c].grad.offset);
  }
}

TEST(Refits, OfAGradientOnADeviceFollowARecordAndSendTheNewFieldsBehindIt) {
  const auto schedule = refit_schedule(true);
  ASSERT_FALSE(refitted(schedule).empty());
  for (const auto c : refitted(schedule)) {
    const auto refit = schedule.refit_task[c];
    const auto up = std::ranges::find_if(schedule.tasks, [&](const Task& task) {
      return task.moves(Lane::to_device, ObjectKind::auxiliary) && task.what.index == c;
    });
    ASSERT_NE(up, schedule.tasks.end());
    const auto copy = static_cast<Index>(up - schedule.tasks.begin());
    EXPECT_TRUE(follows(schedule, copy, refit));
    EXPECT_TRUE(follows(schedule, schedule.update_task[c], copy));
    EXPECT_EQ(up->to.buffer, schedule.groups[c].grad.buffer);
    EXPECT_TRUE(std::ranges::any_of(schedule.tasks[refit].needs, [&](const auto& it) {
      return schedule.tasks[it.task].moves(Lane::from_device, ObjectKind::refit_record);
    }));
  }
}

TEST(Refits, OfALoggedGradientJoinTheCopyThatIsLogged) {
  const auto schedule = refit_schedule(true, {.gradients = true});
  for (const auto c : refitted(schedule)) {
    const auto& refit = schedule.tasks[schedule.refit_task[c]];
    const bool written = std::ranges::any_of(schedule.tasks, [&](const Task& task) {
      return task.moves(Lane::write, ObjectKind::gradient) && task.what.index == c &&
             task.from.buffer == refit.to.buffer;
    });
    EXPECT_TRUE(written) << "chunk " << c;
  }
}

}  // namespace
}  // namespace spillway::plan::step
