// What holds for every schedule with a device: who waits for whom, and what lies where.
#include "spillway/plan/step/passes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/planner.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

using test::describe;

bool is_copy(const Task& task) {
  return is_link(task.lane);
}

class DeviceSchedules : public ::testing::Test {
 protected:
  Bytes least_ = 0;  ///< Lookahead::coalesce_to of the schedule that each() shows

  template <class See>
  void each(See see) {
    std::mt19937 random(3);
    for (int round = 0; round < 80; ++round) {
      auto shape = test::random_shape(random, round);
      if (round % 3 == 1) shape.subspace = round % 2 == 0 ? "up|down" : "up";
      const auto description = describe(shape);
      const auto layout = description.layout();
      const auto placement = test::random_device_placement(description, layout, random);
      const Lookahead ahead{.state_read = 1 + static_cast<std::uint32_t>(random() % 3),
                            .write = 1 + static_cast<std::uint32_t>(random() % 3),
                            .backward = 1 + static_cast<std::uint32_t>(random() % 2),
                            .grad_write = static_cast<std::uint32_t>(random() % 3),
                            .device = static_cast<std::uint32_t>(random() % 4),
                            .coalesce_to = random() % 3 == 0 ? kGoodCopy : random() % (64 * KiB)};
      auto schedule =
          make_schedule(description, layout, placement, ahead, {.gradients = random() % 2 == 0, .period = 3});
      static_cast<void>(lay_out(schedule));
      static_cast<void>(lay_out(schedule, TierKind::device));
      add_reuse_dependencies(schedule);
      least_ = ahead.coalesce_to;
      see(schedule, description, layout, round);
    }
  }
};

TEST_F(DeviceSchedules, NoHostTaskWaitsForAPassOfTheDevice) {
  each([](const Schedule& schedule, const auto&, const auto&, int round) {
    for (const auto& task : schedule.tasks) {
      const bool pass = task.op == Op::compute && !schedule.passes[task.what.index].on_host;
      if (pass || is_copy(task) || task.lane == Lane::device_update) continue;
      for (const auto& need : task.needs) {
        const auto& other = schedule.tasks[need.task];
        const bool chained = task.op == Op::compute;  // the caller's own order
        EXPECT_FALSE(other.op == Op::compute && !schedule.passes[other.what.index].on_host && !chained)
            << "round " << round << ", a task of lane " << name_of(task.lane);
      }
    }
  });
}

TEST_F(DeviceSchedules, PassesOfTheDeviceFindAllTheirBytesThere) {
  each([](const Schedule& schedule, const auto&, const auto&, int round) {
    for (const auto& pass : schedule.passes) {
      for (const auto& weights : pass.weights) {
        EXPECT_EQ(schedule.buffers[weights.here].tier == TierKind::device, !pass.on_host) << "round " << round;
      }
      for (const auto what : {Operand::converted, Operand::input, Operand::output, Operand::hidden_gradient,
                              Operand::head_sums, Operand::gradient, Operand::gradient_sums}) {
        const auto buffer = pass[what];
        if (buffer == kNone) continue;
        EXPECT_EQ(schedule.buffers[buffer].tier == TierKind::device, !pass.on_host)
            << "round " << round << ", pass kind " << static_cast<int>(pass.kind);
      }
    }
  });
}

TEST_F(DeviceSchedules, CopiesGoFromTierToTierWithinTheirBuffers) {
  each([](const Schedule& schedule, const auto&, const auto&, int round) {
    std::size_t copies = 0;
    for (const auto& task : schedule.tasks) {
      if (!is_copy(task)) continue;
      ++copies;
      const auto& there = schedule.buffers[task.on_device().buffer];
      const auto& here = schedule.buffers[task.on_host().buffer];
      EXPECT_EQ(there.tier, TierKind::device) << round;
      EXPECT_EQ(here.tier, TierKind::host) << round;
      EXPECT_LE(task.on_device().offset + task.bytes, there.bytes) << round;
      EXPECT_LE(task.on_host().offset + task.bytes, here.bytes) << round;
      EXPECT_GT(task.bytes, 0U) << round;
    }
    EXPECT_GT(copies, 0U) << round;
  });
}

/// Of one kind, into a buffer of the device or out of it, in order.
std::vector<const Task*> copies_of(const Schedule& schedule, Lane lane, ObjectKind kind, Index buffer) {
  std::vector<const Task*> out;
  for (const auto& task : schedule.tasks) {
    if (task.moves(lane, kind) && task.on_device().buffer == buffer) out.push_back(&task);
  }
  return out;
}

/// They cover the buffer, chunk after chunk, each with as many bytes as there are neighbours to coalesce.
void expect_coalesced(const Schedule& schedule, const std::vector<const Task*>& copies, Bytes coalesce_to, int round) {
  const auto is_trainable = [&](Index c) {
    return std::pair(schedule.update_task[c] != kNone, schedule.takes_change(c));
  };
  // What stays, or is updated there, is sent at other times than what is frozen beside it.
  const bool differ = std::ranges::any_of(copies, [&](const Task* it) {
    return it->when.only != OnlyIf::always ||
           (it->moves(Lane::to_device, ObjectKind::weight) && schedule.updated_there(it->what.index));
  });
  Bytes at = 0;
  auto next = copies.front()->what.index;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& it = *copies[i];
    EXPECT_EQ(it.on_device().offset, at) << round;
    EXPECT_EQ(it.on_host().offset, at) << round;
    EXPECT_EQ(it.what.index, next) << round;
    at += it.bytes;
    next += it.what.count;
    for (auto c = it.what.index; differ && c < next; ++c) {
      EXPECT_EQ(is_trainable(c), is_trainable(it.what.index)) << round;
    }
    const bool last = i + 1 == copies.size();
    const bool apart = differ && (last || is_trainable(next) != is_trainable(it.what.index));
    EXPECT_TRUE(it.bytes >= coalesce_to || copies.size() == 1 || apart)
        << round << ": " << it.bytes << " of " << coalesce_to;
  }
  EXPECT_EQ(at, schedule.buffers[copies.front()->on_device().buffer].bytes) << round;
}

TEST_F(DeviceSchedules, NeighboursAreCopiedTogether) {
  std::mt19937 random(5);
  std::size_t coalesced = 0;
  for (int round = 0; round < 40; ++round) {
    auto shape = test::random_shape(random, round);
    if (round % 2 == 0) shape.frozen = test::kFrozenParts[random() % test::kFrozenParts.size()];
    const auto description = describe(shape);
    const auto layout = description.layout();
    const Bytes coalesce_to = random() % (64 * KiB);
    const bool durable = random() % 2 == 0;  // gradients that stay are logged by coalesced copies, too
    const auto schedule = make_schedule(description, layout, test::random_device_placement(description, layout, random),
                                        {.coalesce_to = coalesce_to}, {.gradients = durable, .period = 3});
    for (Index b = 0; b < schedule.buffers.size(); ++b) {
      for (const auto& [lane, kind] :
           {std::pair(Lane::to_device, ObjectKind::weight), std::pair(Lane::from_device, ObjectKind::gradient)}) {
        const auto copies = copies_of(schedule, lane, kind, b);
        if (!copies.empty()) expect_coalesced(schedule, copies, coalesce_to, round);
        for (const auto* copy : copies) coalesced += copy->what.count > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(coalesced, 40U);
}

/// Whether `task` waits for `on`, of the instance before when `previous`.
bool waits(const Schedule& schedule, Index task, Index on, bool previous) {
  return std::ranges::any_of(schedule.tasks[task].needs,
                             [&](const Dependency& it) { return it.task == on && it.previous == previous; });
}

/// Of one chunk, and perhaps of its neighbours; kNone: there is none.
Index task_of(const Schedule& schedule, Lane lane, ObjectKind kind, Index chunk) {
  for (Index t = 0; t < schedule.tasks.size(); ++t) {
    const auto& it = schedule.tasks[t];
    if (it.moves(lane, kind) && it.what.index <= chunk && chunk < it.what.end()) return t;
  }
  return kNone;
}

/// What a copy of snapshots takes, and what is written of it: the same bytes, in the same steps.
void expect_written(const Schedule& schedule, Index copy, std::vector<Bytes>& written, int round) {
  const auto& it = schedule.tasks[copy];
  Bytes at = 0;
  auto subject = it.what.index;
  for (const auto& write : schedule.tasks) {
    if (!write.moves(Lane::write, it.what.kind) || write.from.buffer != it.to.buffer) continue;
    EXPECT_EQ(write.what.index, subject++) << round;
    EXPECT_EQ(write.from.offset, at) << round;
    EXPECT_EQ(write.when.every, it.when.every) << round;
    EXPECT_EQ(write.when.turn, it.when.turn) << round;
    EXPECT_EQ(write.needs.size(), 1U) << round;
    EXPECT_EQ(write.needs.front().task, copy) << round;
    at += write.bytes;
    written[write.what.index] += write.bytes;
    // The next update of each waits for the copy, which waits for the one before.
    const auto update = schedule.update_task[write.what.index];
    EXPECT_TRUE(waits(schedule, update, copy, true)) << round;
    EXPECT_TRUE(waits(schedule, copy, update, false)) << round;
  }
  EXPECT_EQ(subject, it.what.end()) << round;
  EXPECT_EQ(at, it.bytes) << round;
  EXPECT_EQ(at, schedule.buffers[it.to.buffer].bytes) << round;
}

/// Snapshots of what lives on a device leave it in copies of so many bytes, but for the rest of a block, and whole.
TEST_F(DeviceSchedules, SnapshotsLeaveTogether) {
  std::mt19937 random(29);
  std::size_t coalesced = 0, resident = 0;
  for (int round = 0; round < 60; ++round) {
    auto shape = test::random_shape(random, round);
    if (round % 3 == 0) test::freeze_some(shape, random);
    const auto description = describe(shape);
    const auto layout = description.layout();
    const Bytes coalesce_to = random() % (64 * KiB);
    const auto placement = test::random_device_placement(description, layout, random);
    const auto schedule =
        make_schedule(description, layout, placement, {.coalesce_to = coalesce_to}, {.gradients = true, .period = 3});
    std::vector<Bytes> written(layout.chunks().size());
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      const auto& task = schedule.tasks[t];
      const bool snapshot =
          task.moves(Lane::from_device, ObjectKind::weight) || task.moves(Lane::from_device, ObjectKind::state);
      if (!snapshot || !placement[task.what.index].device_resident()) continue;
      coalesced += task.what.count > 1 ? 1 : 0;
      expect_written(schedule, t, written, round);
      const auto& block = layout.blocks()[layout.chunks()[task.what.index].block];
      const bool whole = task.what.index == block.first_chunk && task.what.count == block.trainable_chunks;
      const bool slice = block.role != state::BlockRole::layer;
      EXPECT_TRUE(task.bytes >= coalesce_to || whole || slice) << round << ": " << task.bytes << " of " << coalesce_to;
    }
    for (Index c = 0; c < written.size(); ++c) {
      const auto& chunk = layout.chunks()[c];
      if (!placement[c].device_resident() || !is_trainable(chunk.training)) continue;
      ++resident;
      EXPECT_EQ(written[c], weight_bytes(description.rule(), chunk) + state_bytes(description.rule(), chunk)) << round;
    }
  }
  EXPECT_GT(resident, 100U);
  EXPECT_GT(coalesced, 30U);
}

TEST_F(DeviceSchedules, ProjectorsThatWereRefittedComeBackBeforeTheUpdateThatTakesThem) {
  std::size_t stay = 0, come = 0, logged = 0;
  each([&](const Schedule& schedule, const Description& description, const state::Layout& layout, int round) {
    for (Index c = 0; c < layout.chunks().size(); ++c) {
      const auto refit = schedule.refit_task[c];
      if (refit == kNone || !schedule.updated_there(c)) continue;
      const auto& copies = schedule.tasks[refit].needs;
      EXPECT_TRUE(std::ranges::all_of(copies, [&](const Dependency& it) { return is_copy(schedule.tasks[it.task]); }))
          << round;
      EXPECT_FALSE(copies.empty()) << round;
      EXPECT_TRUE(schedule.groups[c].change.any()) << round;
      const auto update = schedule.update_task[c];
      const auto projectors = task_of(schedule, Lane::to_device, ObjectKind::auxiliary, c);
      if (projectors == kNone) {  // in the gradient, which comes
        ++come;
        EXPECT_TRUE(waits(schedule, task_of(schedule, Lane::to_device, ObjectKind::gradient, c), refit, true)) << round;
        continue;
      }
      ++stay;
      EXPECT_TRUE(waits(schedule, projectors, refit, false)) << round;
      EXPECT_TRUE(waits(schedule, update, projectors, true)) << round;
      const auto& it = schedule.tasks[projectors];
      const auto record = layout.chunks()[c].reduced.by->record;
      EXPECT_EQ(it.bytes, layout.chunks()[c].reduced.refitted_bytes()) << round;
      const auto& grad = schedule.groups[c].grad;
      EXPECT_EQ(it.to.buffer, grad.buffer) << round;
      EXPECT_EQ(it.to.offset, grad.offset + gradient_value_bytes(description.rule(), layout.chunks()[c]) + record);
      EXPECT_EQ(it.from.offset, schedule.tasks[refit].to.offset + record) << round;
      EXPECT_EQ(it.from.buffer, schedule.tasks[refit].to.buffer) << round;
      logged += task_of(schedule, Lane::write, ObjectKind::gradient, c) != kNone ? 1 : 0;
    }
  });
  EXPECT_GT(stay, 10U);
  EXPECT_GT(logged, 3U);
  EXPECT_GT(stay, logged);
  EXPECT_GT(come, 3U);
}

/// Bytes that one chunk has copied for its update and after it, each way; those of weights where they are alone.
struct Crossing {
  Bytes up = 0, down = 0;
};

/// Whether a task begins only when another one of the instance before has ended, by what it waits for, however far.
bool follows(const Schedule& schedule, Index task, Index other) {
  std::vector<Dependency> reached = {{task, false}};  // `previous`: in the instance before
  std::set<std::pair<Index, bool>> seen;
  while (!reached.empty()) {
    const auto at = reached.back();
    reached.pop_back();
    if (at.task == other && at.previous) return true;
    for (const auto& it : schedule.tasks[at.task].needs) {
      const Dependency next{it.task, at.previous || it.previous};
      if (at.previous && it.previous) continue;  // of the one before that
      if (seen.emplace(next.task, next.previous).second) reached.push_back(next);
    }
  }
  return false;
}

/// One copy of gradients finds its chunks behind one another on both sides. Returns how many they are.
std::size_t expect_gradients_come(const Schedule& schedule, const Description& description, const state::Layout& layout,
                                  const Task& up, int round) {
  Bytes at = 0;
  for (auto c = up.what.index; c < up.what.end(); ++c) {
    EXPECT_EQ(schedule.device_groups[c].grad.buffer, up.to.buffer) << round;
    EXPECT_EQ(schedule.device_groups[c].grad.offset, at) << round;
    EXPECT_EQ(schedule.groups[c].grad.buffer, up.from.buffer) << round;
    EXPECT_EQ(schedule.groups[c].grad.offset, up.from.offset + at) << round;
    at += grad_bytes(description.rule(), layout.chunks()[c]);
  }
  EXPECT_EQ(at, up.bytes) << round;
  EXPECT_EQ(at, schedule.buffers[up.to.buffer].bytes) << round;
  return up.what.count;
}

TEST_F(DeviceSchedules, WhatPassesIsUpdatedBetweenItsCopies) {
  std::size_t updated = 0, gradients = 0, together = 0, snapshots = 0;
  each([&](const Schedule& schedule, const Description& description, const state::Layout& layout, int round) {
    if (schedule.device_groups.empty()) return;
    std::vector<Crossing> states(layout.chunks().size());
    for (const auto& task : schedule.tasks) {
      if (task.moves(Lane::to_device, ObjectKind::state)) states[task.what.index].up += task.bytes;
      if (task.moves(Lane::from_device, ObjectKind::state)) states[task.what.index].down += task.bytes;
      if (task.moves(Lane::to_device, ObjectKind::gradient)) {
        const auto count = expect_gradients_come(schedule, description, layout, task, round);
        gradients += count;
        together += count > 1 ? 1 : 0;
        const auto next = task.what.end();  // in the same buffer, and its bytes go elsewhere: then enough do here
        const bool more = next < schedule.groups.size() && schedule.groups[next].grad.buffer == task.from.buffer;
        EXPECT_TRUE(!more || task.bytes >= least_) << round;
      }
      // What is written of a chunk's snapshot comes from the copy, not from the update.
      if (task.when.phase != Phase::update || task.lane != Lane::write) continue;
      for (const auto& need : task.needs) {
        const auto& other = schedule.tasks[need.task];
        if (other.op != Op::update) continue;
        EXPECT_EQ(schedule.device_groups[other.what.index].weight.buffer, kNone) << round;
      }
    }
    for (Index c = 0; c < layout.chunks().size(); ++c) {
      const auto& it = schedule.device_groups[c];
      if (!it.weight.any()) continue;
      ++updated;
      EXPECT_TRUE(schedule.updated_there(c)) << round;
      EXPECT_EQ(schedule.early[c].task, kNone) << round;
      for (const auto& place : {it.weight, it.state, it.grad}) {
        EXPECT_EQ(schedule.buffers[place.buffer].tier, TierKind::device) << round;
      }
      EXPECT_EQ(schedule.buffers[schedule.groups[c].weight.buffer].tier, TierKind::host) << round;
      EXPECT_EQ(schedule.buffers[schedule.groups[c].state.buffer].tier, TierKind::host) << round;
      const auto bytes = state_bytes(description.rule(), layout.chunks()[c]);
      EXPECT_EQ(states[c].up, bytes) << round;
      EXPECT_EQ(states[c].down, bytes) << round;
      // A snapshot is told when both its parts are written: neither may be written anew before.
      const auto weight = task_of(schedule, Lane::write, ObjectKind::weight, c);
      const auto state = task_of(schedule, Lane::write, ObjectKind::state, c);
      if (weight == kNone || state == kNone) continue;
      ++snapshots;
      EXPECT_TRUE(follows(schedule, weight, state)) << round;
      EXPECT_TRUE(follows(schedule, state, weight)) << round;
    }
  });
  EXPECT_GT(snapshots, 20U);
  EXPECT_GT(updated, 100U);
  EXPECT_GT(gradients, 50U);
  EXPECT_GT(together, 5U);
}

TEST(DevicePlan, WhatIsFrozenAndStaysIsSentOnce) {
  const auto description = describe({.layers = 4, .tied = false, .tokens = 64, .frozen = "up|down|embed|head"});
  const auto layout = description.layout();
  Budget budget{.dram = 1 * GiB};
  budget.device = DeviceTier{.capacity = 1 * GiB, .weight = 1, .activation = 1};
  const Rates rates{.cores = 2, .update = 1e9, .forward = 1e-6, .backward = 2e-6, .to_device = 1e6, .from_device = 1e6};
  const auto plan = make_plan(description, layout, budget, rates);
  Bytes trainable = 0;
  for (const auto& chunk : layout.chunks()) trainable += state::is_trainable(chunk.training) ? chunk.elements * 2 : 0;
  const auto boundaries = description.tokens * description.hidden_size * 2;
  EXPECT_LE(plan.to_device_per_step, trainable + boundaries + 8 * KiB);
  EXPECT_NEAR(plan.prediction.seconds[Lane::to_device], static_cast<double>(plan.to_device_per_step) / 1e6, 1e-6);
  EXPECT_LT(plan.prediction.step_seconds, 1.0);  // all weights alone take longer
  std::size_t once = 0;
  for (const auto& task : plan.schedule.tasks) once += task.when.only == OnlyIf::stored_weights ? 1 : 0;
  EXPECT_GT(once, 0U);
}

/// Every task can run: the dependencies within an instance have no circle.
TEST_F(DeviceSchedules, TasksEnd) {
  each([](const Schedule& schedule, const Description& description, const state::Layout& layout, int round) {
    Rates rates{.cores = 2, .paths = {{1e9, 1e9, 1e9}}, .update = 1e8, .forward = 1e-3, .backward = 2e-3};
    rates.to_device = rates.from_device = 1e9;
    rates.device_update = 1e8;
    const auto played = simulate(schedule, description, layout, rates, 4);
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      ASSERT_TRUE(played.tasks[t].end != 0 || played.tasks[t].start != 0 || schedule.tasks[t].when.every > 1 ||
                  schedule.tasks[t].when.only == OnlyIf::stored_weights)
          << "round " << round << ", task " << t << " of lane " << name_of(schedule.tasks[t].lane);
    }
    EXPECT_GT(played.seconds[Lane::to_device], 0) << round;
    EXPECT_GT(played.seconds[Lane::from_device], 0) << round;
  });
}

TEST(DevicePlan, WhatStaysSavesTraffic) {
  const auto description = describe({.layers = 4, .tokens = 64});
  const auto layout = description.layout();
  Budget budget{.dram = 1 * GiB};
  budget.device = DeviceTier{.capacity = 1 * GiB, .weight = 0, .activation = 0};
  const auto moving = make_plan(description, layout, budget, {});
  budget.device->weight = budget.device->activation = 1;
  const auto staying = make_plan(description, layout, budget, {});
  EXPECT_LT(staying.to_device_per_step, moving.to_device_per_step);
  EXPECT_LT(staying.from_device_per_step, moving.from_device_per_step);
  EXPECT_GT(staying.device_arena, moving.device_arena);
  EXPECT_LT(staying.arena, moving.arena);  // boundaries are no longer kept there
  Bytes weights = 0, grads = 0;
  for (const auto& chunk : layout.chunks()) {
    weights += chunk.elements * 2;
    grads += chunk.elements * 2;
  }
  EXPECT_GE(moving.from_device_per_step, grads);
  EXPECT_LE(staying.from_device_per_step, grads + description.tokens * description.hidden_size * 2 + 8 * KiB);
  EXPECT_LE(staying.to_device_per_step, weights + description.tokens * description.hidden_size * 2 + 8 * KiB);
}

TEST(DevicePlan, ASlowLinkIsTheBottleneck) {
  const auto description = describe({.layers = 4, .tokens = 64});
  const auto layout = description.layout();
  Budget budget{.dram = 1 * GiB};
  budget.device = DeviceTier{.capacity = 1 * GiB, .weight = 0, .activation = 0};
  Rates rates{.cores = 2, .update = 1e9, .forward = 1e-6, .backward = 2e-6};
  rates.to_device = 1e6;
  rates.from_device = 1e9;
  const auto plan = make_plan(description, layout, budget, rates);
  EXPECT_EQ(plan.prediction.bottleneck, "to_device");
  EXPECT_GE(plan.prediction.step_seconds, 0.99 * plan.prediction.seconds[Lane::to_device]);
}

}  // namespace
}  // namespace spillway::plan
