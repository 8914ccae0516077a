// What autograd saves of layers that spill: written behind forward, read ahead of backward, once each in a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/schedule.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

class SpilledSchedules : public ::testing::Test {
 protected:
  template <class See>
  void each(See see) {
    std::mt19937 random(9);
    for (int round = 0; round < 60; ++round) {
      auto shape = test::random_shape(random, round);
      if (round % 3 == 1) shape.frozen = test::kFrozenParts[random() % test::kFrozenParts.size()];
      const auto description = test::describe(shape);
      const auto layout = description.layout();
      const auto saved = test::random_saved(layout, random);
      auto schedule = make_schedule(description, layout, test::random_placement_of(layout, random),
                                    {.backward = 1 + static_cast<std::uint32_t>(random() % 3)},
                                    {.gradients = random() % 2 == 0, .period = 3}, saved);
      static_cast<void>(lay_out(schedule));
      add_reuse_dependencies(schedule);
      see(schedule, layout, saved);
    }
  }

  /// The only transfer of what is saved of a layer on this lane; kNone: there is none.
  [[nodiscard]] static Index transfer_of(const Schedule& schedule, Lane lane, Index layer) {
    Index out = kNone;
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      const auto& it = schedule.tasks[t];
      if (!it.moves(lane, ObjectKind::saved) || it.what.index != layer) continue;
      EXPECT_EQ(out, kNone) << "a second one of layer " << layer;
      out = t;
    }
    return out;
  }

  [[nodiscard]] static bool follows(const Schedule& schedule, Index task, Index on, bool previous = false) {
    return std::ranges::any_of(schedule.tasks[task].needs,
                               [&](const auto& it) { return it.task == on && it.previous == previous; });
  }
};

TEST_F(SpilledSchedules, WritesFollowForwardAndReadsComeBeforeBackward) {
  std::size_t spilled = 0;
  each([&](const Schedule& schedule, const state::Layout& layout, const SavedPlacement& saved) {
    Index layer = 0;
    for (Index b = 0; b < layout.blocks().size(); ++b) {
      if (layout.blocks()[b].role != state::BlockRole::layer) continue;
      const auto write = transfer_of(schedule, Lane::write, layer), read = transfer_of(schedule, Lane::read, layer);
      ++layer;
      ASSERT_EQ(write != kNone, saved.of(b) == Saved::spill);
      ASSERT_EQ(read != kNone, saved.of(b) == Saved::spill);
      if (write == kNone) continue;
      ++spilled;
      const auto pass_of = [&](PassKind kind) {
        return *std::ranges::find_if(schedule.passes, [&](const Pass& it) { return it.kind == kind && it.block == b; });
      };
      const auto forward = pass_of(PassKind::forward), backward = pass_of(PassKind::backward);
      EXPECT_TRUE(follows(schedule, write, forward.task));
      EXPECT_TRUE(follows(schedule, read, write));
      EXPECT_TRUE(follows(schedule, backward.task, read));
      EXPECT_TRUE(follows(schedule, write, read, true)) << "the one of the step before is read when it is written over";
      EXPECT_EQ(schedule.tasks[write].from.buffer, forward[Operand::saved]);
      EXPECT_EQ(schedule.tasks[read].to.buffer, backward[Operand::saved]);
      EXPECT_LE(schedule.tasks[read].deadline, backward.position);
    }
  });
  EXPECT_GT(spilled, 20U);
}

TEST(SpilledFromADevice, ItLeavesBehindForwardAndComesBackAheadOfBackward) {
  std::mt19937 random(10);
  std::size_t spilled = 0;
  for (int round = 0; round < 60; ++round) {
    const auto description = test::describe(test::random_shape(random, round));
    const auto layout = description.layout();
    auto saved = test::random_saved(layout, random);
    if (round % 2 == 0) saved.home = {TierKind::host, static_cast<std::uint16_t>(random() % 3)};
    const auto placement = test::random_device_placement(description, layout, random);
    const auto schedule = make_schedule(description, layout, placement,
                                        {.device = 1 + static_cast<std::uint32_t>(random() % 3)}, {}, saved);
    for (const auto& pass : schedule.passes) {
      EXPECT_EQ(pass[Operand::saved] != kNone, pass.saved == Saved::spill);
      if (pass[Operand::saved] == kNone) continue;
      ++spilled;
      EXPECT_EQ(schedule.buffers[pass[Operand::saved]].tier, TierKind::device);
      const bool leaves = pass.kind == PassKind::forward;
      const auto lane = leaves ? Lane::from_device : Lane::to_device;
      const auto copy = std::ranges::find_if(schedule.tasks, [&](const Task& it) {
        return it.moves(lane, ObjectKind::saved) && it.on_device().buffer == pass[Operand::saved];
      });
      ASSERT_NE(copy, schedule.tasks.end());
      const auto number = static_cast<Index>(copy - schedule.tasks.begin());
      const auto& waits = schedule.tasks[leaves ? number : pass.task].needs;
      EXPECT_NE(std::ranges::find(waits, leaves ? pass.task : number, &Dependency::task), waits.end());
      const auto& host = schedule.buffers[copy->on_host().buffer];
      EXPECT_EQ(host.node, saved.home.node);
      EXPECT_EQ(host.bytes, saved.spilled);
    }
    EXPECT_EQ(
        std::ranges::any_of(schedule.tasks, [](const Task& it) { return it.moves(Lane::write, ObjectKind::saved); }),
        !saved.home.in_memory() && std::ranges::count(saved.blocks, Saved::spill) > 0);
  }
  EXPECT_GT(spilled, 40U);
}

TEST_F(SpilledSchedules, BuffersLiveFromTheirFirstUseToTheirLast) {
  each([](const Schedule& schedule, const auto&, const SavedPlacement& saved) {
    for (const auto& pass : schedule.passes) {
      EXPECT_EQ(pass[Operand::saved] != kNone, pass.saved == Saved::spill);
      if (pass[Operand::saved] == kNone) continue;
      const auto& buffer = schedule.buffers[pass[Operand::saved]];
      EXPECT_EQ(buffer.bytes, saved.spilled);
      EXPECT_LE(buffer.first, pass.position);
      EXPECT_GE(buffer.last, pass.position);
      EXPECT_EQ(pass.kind == PassKind::forward ? buffer.first : buffer.last, pass.position);
    }
  });
}

TEST_F(SpilledSchedules, WhatLiesOnPathsBetweenPassesIsSaid) {
  each([](const Schedule& schedule, const auto&, const auto&) {
    std::size_t written = 0;
    for (const auto& task : schedule.tasks) {
      if (task.lane != Lane::write || traits(task.what.kind).numbered != Numbered::by_layer) continue;
      ++written;
      EXPECT_EQ(std::ranges::count(schedule.activations, Activation{task.what, task.bytes}), 1);
    }
    EXPECT_EQ(written, schedule.activations.size());
  });
}

}  // namespace
}  // namespace spillway::plan
