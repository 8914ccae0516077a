// A gradient on its way from the pass that makes it to the update that takes it.
#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

struct Made {
  Schedule schedule;
  Index pass = kNone, first = kNone, write = kNone;
};

/// The gradient of the first layer, which stays in memory or goes to a path.
Made make(bool stays, const Redo& redo) {
  const auto description = test::describe({.layers = 2, .tied = false});
  const auto layout = description.layout();
  const auto placement = test::placement_of(layout, {.gradient = stays});
  const Lookahead lookahead;
  StepGraph graph({description, layout, placement, lookahead, redo});
  add_block_passes(graph);
  add_updates(graph);
  add_weights(graph);
  Made out;
  const auto block = graph.order.layers.front();
  out.pass = graph.order.backward.front();
  out.first = graph.chunk_of(block, 0);
  add_gradients(graph);
  out.write = graph.write_grad[out.first];
  out.schedule = std::move(graph).freeze();
  return out;
}

bool waits(const Schedule& schedule, Index task, Index on) {
  return std::ranges::any_of(schedule.tasks[task].needs, [&](const auto& it) { return it.task == on; });
}

TEST(Gradients, ThatStayAreTakenWhereTheyWereMade) {
  const auto made = make(true, {});
  EXPECT_EQ(made.write, kNone);
  const auto& pass = made.schedule.passes[made.pass];
  EXPECT_EQ(made.schedule.groups[made.first].grad.buffer, pass[Operand::gradient]);
  const auto& last = made.schedule.buffers[pass[Operand::gradient]].last_tasks;
  EXPECT_NE(std::ranges::find(last, made.schedule.update_task[made.first]), last.end());
}

TEST(Gradients, ThatStayAreLoggedWhenAStepIsDurable) {
  const auto made = make(true, {.gradients = true});
  ASSERT_NE(made.write, kNone);
  EXPECT_TRUE(waits(made.schedule, made.write, made.schedule.passes[made.pass].task));
  const auto& earlier = made.schedule.buffers[made.schedule.passes[made.pass][Operand::gradient]].earlier_tasks;
  EXPECT_NE(std::ranges::find(earlier, made.write), earlier.end());
}

TEST(Gradients, ThatLeaveAreReadBackForTheUpdate) {
  const auto made = make(false, {});
  ASSERT_NE(made.write, kNone);
  EXPECT_NE(made.schedule.groups[made.first].grad.buffer, made.schedule.passes[made.pass][Operand::gradient]);
  const auto& tasks = made.schedule.tasks;
  const auto read = std::ranges::find_if(
      tasks, [&](const Task& it) { return it.moves(Lane::read, ObjectKind::gradient) && it.what.index == made.first; });
  ASSERT_NE(read, tasks.end());
  EXPECT_TRUE(waits(made.schedule, made.schedule.update_task[made.first], static_cast<Index>(read - tasks.begin())));
}

}  // namespace
}  // namespace spillway::plan::step
