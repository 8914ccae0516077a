// Updates before their step is decided follow the gradient, and keep the old version.
#include "spillway/plan/step/early.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

TEST(EarlyUpdates, FollowTheirGradientsAndKeepTheOldVersion) {
  const auto description = test::describe({.layers = 2, .tied = false});
  const auto layout = description.layout();
  const auto schedule = make_schedule(description, layout, test::placement_of(layout, {.when = When::early}), {});
  std::size_t early = 0;
  for (Index c = 0; c < layout.chunks().size(); ++c) {
    const auto& it = schedule.early[c];
    const bool layer = layout.blocks()[layout.chunks()[c].block].role == state::BlockRole::layer;
    if (it.task == kNone) {
      EXPECT_FALSE(layer) << "chunk " << c;
      continue;
    }
    ++early;
    const auto waits = [&](Index task, Index on) {
      return std::ranges::any_of(schedule.tasks[task].needs, [&](const Dependency& need) { return need.task == on; });
    };
    const auto pass =
        std::ranges::find(schedule.passes, it.grad.buffer, [](const Pass& of) { return of[Operand::gradient]; });
    ASSERT_NE(pass, schedule.passes.end());
    EXPECT_TRUE(waits(it.task, pass->task)) << "chunk " << c;
    EXPECT_TRUE(waits(schedule.update_task[c], it.task)) << "chunk " << c;
    const auto& chunk = layout.chunks()[c];
    const auto rule = description.rule();
    EXPECT_EQ(schedule.buffers[it.undo].bytes, weight_bytes(rule, chunk) + state_bytes(rule, chunk));
  }
  EXPECT_GT(early, 2U);
}

TEST(EarlyUpdates, AreNoneOfWhatLiesOnAPath) {
  const auto description = test::describe({.layers = 2});
  const auto layout = description.layout();
  const auto placement = test::placement_of(layout, {.state = false, .when = When::early});
  const Lookahead lookahead;
  const Redo redo;
  const StepGraph graph({description, layout, placement, lookahead, redo});
  for (const auto c : graph.updates) EXPECT_FALSE(is_early(graph, c));
}

}  // namespace
}  // namespace spillway::plan::step
