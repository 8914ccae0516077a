// Steps of several processes: who updates what, what goes between them, and that no order of theirs is a circle.
#include "spillway/plan/step/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

Description of_rank(const test::Shape& shape, std::size_t rank, std::size_t size, std::size_t local = 1) {
  auto out = test::describe(shape);
  out.world = {.size = size, .rank = rank, .local = local};
  out.step_tokens = 4 * out.tokens;
  return out;
}

test::Shape shared_shape(std::mt19937& random, int round) {
  auto out = test::random_shape(random, round);
  out.virtual_ranks = 2 + random() % 3;
  out.micro_batches = 1 + random() % 9;
  out.chunk_elements = 2048;
  return out;
}

/// The tasks of one process, as far as they have run.
struct Process {
  explicit Process(Schedule of) : schedule(std::move(of)), done(schedule.tasks.size(), false) {}

  [[nodiscard]] bool ready(Index task) const {
    return std::ranges::all_of(schedule.tasks[task].needs,
                               [&](const Dependency& need) { return need.previous || done[need.task]; });
  }
  /// Runs what needs no other process; whether there was any.
  bool run() {
    bool any = false;
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      if (done[t] || schedule.tasks[t].lane == Lane::network || !ready(t)) continue;
      done[t] = any = true;
    }
    return any;
  }

  Schedule schedule;
  std::vector<bool> done;
};

TEST(Network, HasNothingInAWorldOfOne) {
  const auto description = test::describe({.virtual_ranks = 4});
  const auto layout = description.layout();
  const auto schedule = make_schedule(description, layout, test::placement_of(layout), {});
  EXPECT_TRUE(schedule.network.empty());
  EXPECT_TRUE(std::ranges::none_of(schedule.tasks, [](const Task& it) { return it.lane == Lane::network; }));
}

TEST(Network, MakesOneOrderForAllAndNoCircle) {
  std::mt19937 random(31);
  std::size_t partly_frozen = 0;  // blocks that live on devices
  for (int round = 0; round < 60; ++round) {
    auto shape = shared_shape(random, round);
    if (round % 3 == 2) shape.subspace = "up|down";
    if (round % 4 == 1) test::freeze_some(shape, random);
    shape.shard_frozen = round % 8 == 5;
    const auto size = 2 + random() % (shape.virtual_ranks - 1);
    const auto layout = test::describe(shape).layout();
    auto placement = round % 2 == 0 ? test::random_placement_of(layout, random)
                                    : test::random_device_placement(of_rank(shape, 0, size), layout, random);
    for (const auto& it : layout.blocks()) {
      const bool partly = it.trainable_chunks > 0 && it.trainable_chunks < it.chunks;
      partly_frozen += partly && placement[it.first_chunk].device_resident() ? 1 : 0;
    }
    if (random() % 2 == 0) keep_own_weights(of_rank(shape, 0, size), layout, placement, true);
    const auto local = round % 3 == 0 || size % 2 != 0 ? size : 1 + random() % 2;
    const Redo redo{.gradients = random() % 2 == 0, .period = 3};
    std::vector<Process> processes;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const Lookahead ahead{.state_read = 1,
                            .write = 1 + static_cast<std::uint32_t>(random() % 3),
                            .backward = static_cast<std::uint32_t>(random() % 3),
                            .grad_write = static_cast<std::uint32_t>(random() % 3),
                            .head = static_cast<std::uint32_t>(random() % 3),
                            .device = static_cast<std::uint32_t>(random() % 3)};
      const auto description = of_rank(shape, rank, size, local);
      processes.emplace_back(make_schedule(description, layout, placement, ahead, redo));
      auto& schedule = processes.back().schedule;
      static_cast<void>(lay_out(schedule));
      static_cast<void>(lay_out(schedule, TierKind::device));
      add_reuse_dependencies(schedule);
    }
    const auto what = [](const Schedule& schedule) {
      std::vector<std::pair<Op, Index>> out;
      for (const auto t : schedule.network) out.emplace_back(schedule.tasks[t].op, schedule.tasks[t].what.index);
      return out;
    };
    const auto order = what(processes.front().schedule);
    ASSERT_FALSE(order.empty());
    for (const auto& it : processes) ASSERT_EQ(what(it.schedule), order);
    for (std::size_t next = 0; next <= order.size(); ++next) {
      for (auto& it : processes) {
        while (it.run()) {
        }
      }
      if (next == order.size()) break;
      for (auto& it : processes) {  // it ends when all have begun it
        const auto task = it.schedule.network[next];
        ASSERT_TRUE(it.ready(task)) << "round " << round << ": waits for what comes later: " << next;
        it.done[task] = true;
      }
    }
    for (const auto& it : processes) EXPECT_TRUE(std::ranges::all_of(it.done, [](bool done) { return done; }));
  }
  EXPECT_GT(partly_frozen, 3U);
}

TEST(Network, MovesBetweenMachinesWhatOneProcessOnEachWould) {
  std::mt19937 random(8);
  for (int round = 0; round < 20; ++round) {
    auto shape = shared_shape(random, round);
    shape.virtual_ranks = 4;
    shape.micro_batches = 4;
    if (round % 3 == 2) shape.subspace = "up|down";
    const auto layout = test::describe(shape).layout();
    const auto placement = test::random_placement_of(layout, random);
    const auto between = [&](std::size_t size, std::size_t local) {
      Bytes sent = 0, received = 0, inside = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        auto description = of_rank(shape, rank, size, local);
        description.tokens = 64 * local / size;  // of the rows of an embedding, which are a bound
        const auto schedule = make_schedule(description, layout, placement, {});
        sent += schedule.sent_between;
        received += schedule.received_between;
        inside += schedule.network_sent - schedule.sent_between;
        EXPECT_GE(schedule.network_received, schedule.received_between);
      }
      EXPECT_EQ(sent, received);
      EXPECT_EQ(inside > 0, local > 1);
      return sent;
    };
    const auto two = between(2, 1);
    ASSERT_GT(two, 0U);
    EXPECT_EQ(between(4, 4), 0U);
    if (shape.embedding) continue;
    EXPECT_EQ(between(4, 2), two) << "round " << round;
  }
}

TEST(Network, LetsEachProcessUpdateItsOwn) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    auto shape = shared_shape(random, round);
    if (round % 2 == 1) test::freeze_some(shape, random);
    const auto size = shape.virtual_ranks;
    const auto layout = test::describe(shape).layout();
    std::vector<int> updates(layout.chunks().size(), 0);
    for (std::size_t rank = 0; rank < size; ++rank) {
      const auto description = of_rank(shape, rank, size);
      const auto schedule = make_schedule(description, layout, test::placement_of(layout, {.weight = false}), {});
      for (Index c = 0; c < updates.size(); ++c) {
        const bool mine = schedule.update_task[c] != kNone;
        updates[c] += mine ? 1 : 0;
        EXPECT_EQ(mine, schedule.groups[c].state.any());
        EXPECT_TRUE(mine || schedule.snapshot_every[c] == 0);
      }
    }
    for (const auto& chunk : layout.chunks()) {
      EXPECT_EQ(updates[chunk.id], state::is_trainable(chunk.training) ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace spillway::plan::step
