// An update finds its parts where it runs: they come over the hops from their homes, or the update makes them.
#include "spillway/plan/step/updates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

/// Lanes that move a part of a chunk, in the order of lanes.
std::vector<Lane> lanes_of(const Schedule& schedule, ObjectKind kind, Index chunk) {
  std::vector<Lane> out;
  for (const auto& task : schedule.tasks) {
    if (task.op == Op::transfer && task.what.kind == kind && task.what.index == chunk) out.push_back(task.lane);
  }
  std::ranges::sort(out);
  return out;
}

TEST(Updates, OnADeviceTakeAStateFromAPathByTwoHopsAndGiveItBackByTwo) {
  const auto description = test::describe({.layers = 2, .tied = false});
  const auto layout = description.layout();
  auto placement = test::placement_of(layout, {.state = false});
  placement.device = true;
  std::size_t updated = 0;
  for (Index c = 0; c < layout.chunks().size(); ++c) {
    if (can_be_on_device(description, layout, c)) placement.chunks[c].updated_on = TierKind::device;
  }
  const auto schedule = make_schedule(description, layout, placement, {});
  for (Index c = 0; c < layout.chunks().size(); ++c) {
    if (!placement[c].updated_there()) continue;
    ++updated;
    EXPECT_EQ(lanes_of(schedule, ObjectKind::state, c),
              (std::vector{Lane::read, Lane::write, Lane::to_device, Lane::from_device}));
    for (const auto& part : {kWeightPart, kStatePart, kGradientPart}) {
      const auto& place = schedule.updated_at(c).*part.place;
      EXPECT_EQ(schedule.buffers[place.buffer].tier, TierKind::device);
    }
  }
  EXPECT_GT(updated, 2U);
}

TEST(Updates, MakeTheGradientsOfRowsThemselves) {
  const auto description = test::describe({.layers = 2, .tied = false});
  const auto layout = description.layout();
  const auto schedule = make_schedule(description, layout, test::placement_of(layout), {});
  const auto& table = *layout.embedding();
  for (auto c = static_cast<Index>(table.first_chunk); c < table.first_chunk + table.chunks; ++c) {
    const auto& buffer = schedule.buffers[schedule.groups[c].grad.buffer];
    EXPECT_EQ(buffer.first_tasks, std::vector{schedule.update_task[c]});
    EXPECT_EQ(buffer.last_tasks, std::vector{schedule.update_task[c]});
    EXPECT_TRUE(lanes_of(schedule, ObjectKind::gradient, c).empty());
  }
}

}  // namespace
}  // namespace spillway::plan::step
