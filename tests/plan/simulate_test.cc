// The step time that a plan is chosen by and a user is shown.
#include "spillway/plan/simulate.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/plan/pass_seconds.h"
#include "spillway/plan/path_queue.h"
#include "spillway/plan/planner.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

class Simulate : public ::testing::Test {
 protected:
  Simulate()
      : description_(test::describe({.layers = 6, .hidden = 256, .ffn = 1024, .chunk_elements = 1 << 17})),
        layout_(description_.blocks, description_.chunk_elements) {
    rates_.cores = 4;
    rates_.update = 1e9;
    rates_.io_cores = 0;
    rates_.forward = 0.01;
    rates_.backward = 0.03;
    rates_.head_loss = rates_.head_gradient = 0.005;
  }

  Plan plan(double share, std::size_t paths = 1, double rate = 1e9) {
    Budget budget;
    budget.dram = 1 * GiB;
    budget.placement = {.weight = share, .state = share, .grad = share, .activation = share};
    rates_.paths.clear();
    for (std::size_t p = 0; p < paths; ++p) {
      budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
      rates_.paths.push_back({.read = rate, .write = rate, .mixed = rate});
    }
    return make_plan(description_, layout_, budget, rates_);
  }

  Description description_;
  state::Layout layout_;
  Rates rates_;
};

TEST_F(Simulate, InMemoryAStepTakesAsLongAsItsPasses) {
  const auto found = plan(1).prediction;
  double passes = 0;
  const auto laid_out = plan(1);
  for (Index v = 0; v < laid_out.schedule.passes.size(); ++v) {
    passes += pass_seconds(laid_out.schedule, layout_, rates_, v);
  }
  EXPECT_NEAR(found.compute_seconds, passes, 1e-9);
  EXPECT_EQ(found.transfer_seconds, 0);
  EXPECT_EQ(found.bottleneck, "compute");
  EXPECT_GE(found.step_seconds, passes - 1e-9);
  EXPECT_LE(found.step_seconds, passes + found.update_seconds + 1e-9);
}

TEST_F(Simulate, UpdatesTakeOfTheCoresThatTheyShare) {
  rates_.update = 1e7;
  const auto found = plan(1).prediction;
  EXPECT_GE(found.step_seconds, found.compute_seconds + found.update_seconds / rates_.cores - 1e-9);
}

TEST_F(Simulate, UpdatesOnEveryCoreAreNoFasterThanTheirMemory) {
  rates_.update = 1e7;
  const auto free = plan(1).prediction;
  rates_.update_all = 1.2e7;
  const auto bound = plan(1).prediction;
  EXPECT_GT(bound.step_seconds, free.step_seconds);
  EXPECT_GE(bound.step_seconds, bound.compute_seconds + bound.update_seconds / 1.2 - 1e-9);
}

TEST_F(Simulate, CopiesOfALinkTakeBandwidthOfTheMemoryThatUpdatesNeed) {
  constexpr double kBytes = 26;  // of an element's exact update
  rates_.forward = rates_.backward = 1e-6;
  rates_.to_device = rates_.from_device = 1e9;
  rates_.update_cores = 2;
  rates_.update = rates_.update_all = 1e8;
  Budget budget{.dram = 1 * GiB,
                .device = DeviceTier{.capacity = 32 * MiB, .weight = 0, .state = 0},
                .streams_weights = true,
                .window = 2};
  const auto planned = make_plan(description_, layout_, budget, rates_);
  const auto seconds = [&] { return simulate(planned.schedule, description_, layout_, rates_).step_seconds; };
  double elements = 0;
  for (const auto& task : planned.schedule.tasks) {
    if (task.lane == Lane::update) elements += static_cast<double>(task.bytes);
  }
  const auto copied = static_cast<double>(planned.to_device_per_step + planned.from_device_per_step) / kBytes;
  EXPECT_GT(copied, 0.1 * elements);
  const double shared = seconds();
  EXPECT_GE(shared, (elements + copied) / 1e8 - 1e-6);
  auto bf16_states = description_;
  bf16_states.state_format = state::StateFormat::bf16;  // 18 bytes an element: the same rate is less bandwidth
  EXPECT_GT(simulate(planned.schedule, bf16_states, layout_, rates_).step_seconds, shared);
  rates_.update = 5e7, rates_.update_all = 0;  // as fast by two threads, beside which memory has bandwidth to spare
  EXPECT_LT(seconds(), shared - 0.25 * copied / 1e8);
}

TEST_F(Simulate, UpdatesTakeBandwidthOfTheNodeThatTheyReadGradientsFrom) {
  rates_.forward = rates_.backward = 1e-6;
  rates_.to_device = rates_.from_device = 1e15;
  rates_.update_cores = 4;
  rates_.nodes = {{.update = 4e7, .update_thread = 4e7}, {.update = 2e7, .update_thread = 2e7}};
  Budget budget{.dram = 2 * GiB,
                .nodes = {{.id = 0, .capacity = 1 * GiB}, {.id = 2, .capacity = 1 * GiB}},
                .device = DeviceTier{.capacity = 32 * MiB, .weight = 0, .state = 0}};
  budget.placement.grad_on = 1;
  const auto remote = make_plan(description_, layout_, budget, rates_).schedule;
  ASSERT_GT(std::ranges::count(remote.node, 0), 0);
  ASSERT_GT(std::ranges::count(remote.node, 1), 0);
  auto local = remote;
  for (Index c = 0; c < local.groups.size(); ++c) {
    const auto& gradient = local.groups[c].grad;
    if (gradient.any()) local.buffers[gradient.buffer].node = local.node[c];
  }
  const auto seconds = [&](const Schedule& it) { return simulate(it, description_, layout_, rates_).step_seconds; };
  // An element has 26 bytes, 2 of them its gradient, which the first node's updates read from the second.
  EXPECT_GT(seconds(remote), 1.05 * seconds(local));
}

TEST_F(Simulate, WhatComputeKeepsBesideUpdatesIsTakenAsMeasured) {
  rates_.update = 1e8;
  const auto fair = plan(0, 1, 1e12).prediction;  // every update waits for a read, and runs beside compute
  rates_.compute_beside = 0.4;                    // of 4 / 5
  rates_.update_beside = 0.8e8;                   // as a fair share
  const auto held_up = plan(0, 1, 1e12).prediction;
  const auto alone = held_up.compute_seconds;
  EXPECT_GT(held_up.step_seconds, fair.step_seconds);
  // While an update runs compute does 0.4 of its work, and one update runs for all parameters at 0.8e8.
  const auto updates = static_cast<double>(layout_.parameters()) / 0.8e8;
  EXPECT_LE(held_up.step_seconds, alone + 0.6 * updates + 1e-6);
  EXPECT_GE(held_up.step_seconds, alone + 0.3 * updates);
}

TEST_F(Simulate, ComputeLosesToPathsWhatTheyMoveOfTheirMost) {
  rates_.update = 1e12;
  const auto free = plan(0, 1, 1e8).prediction;
  rates_.io_cores = 1;  // of 4
  const auto busy = plan(0, 1, 1e8).prediction;
  const auto computes = [&](const Simulation& found) { return found.step_seconds - found.stall_seconds; };
  EXPECT_GT(computes(busy), 1.02 * computes(free));
  EXPECT_LE(computes(busy), computes(free) / 0.75 + 1e-9);
  rates_.update_cores = 2;                                                  // then paths have these
  EXPECT_NEAR(computes(plan(0, 1, 1e8).prediction), computes(free), 1e-6);  // but for the updates
}

TEST_F(Simulate, OnCoresOfTheirOwnOnlyTheFirstUpdatesAreWaitedFor) {
  rates_.update = 4e7;  // a layer in less time than its forward pass
  rates_.update_cores = 2;
  const auto found = plan(1).prediction;
  const auto all = found.update_seconds / rates_.update_cores;
  const auto& blocks = layout_.blocks();
  const auto first = static_cast<double>(blocks[0].elements + blocks[1].elements) / 8e7;  // embedding, first layer
  ASSERT_GT(all, 3 * first);
  EXPECT_LE(found.step_seconds, found.compute_seconds + 1.01 * first);
}

TEST_F(Simulate, ASlowPathBoundsTheStep) {
  const auto slow = plan(0, 1, 1e7);
  const auto& found = slow.prediction;
  EXPECT_EQ(found.bottleneck, "path:0");
  EXPECT_NEAR(found.transfer_seconds, static_cast<double>(slow.read_per_step + slow.written_per_step) / 1e7, 1e-6);
  EXPECT_GE(found.step_seconds, 0.99 * found.transfer_seconds);
  EXPECT_LT(found.step_seconds, 1.25 * found.transfer_seconds);
}

TEST_F(Simulate, BandwidthsOfPathsAdd) {
  const auto one = plan(0, 1, 1e7).prediction;
  const auto three = plan(0, 3, 1e7).prediction;
  EXPECT_NEAR(three.transfer_seconds, one.transfer_seconds / 3, 1e-9);
  EXPECT_LT(three.step_seconds, one.step_seconds / 2.5);
  EXPECT_EQ(three.bottleneck, "paths");
}

/// A boundary activation that leaves is small and soon needed; while much else is written it waits for what the paths
/// have in flight, which are more seconds on a slow path.
TEST_F(Simulate, AnUrgentWriteWaitsForWhatThePathsWereHanded) {
  const auto longest = [&](double rate) {
    const auto found = plan(0, 1, rate);
    double out = 0;
    for (Index t = 0; t < found.schedule.tasks.size(); ++t) {
      if (!found.schedule.tasks[t].moves(Lane::write, ObjectKind::boundary)) continue;
      out = std::max(out, found.prediction.tasks[t].end - found.prediction.tasks[t].start);
    }
    return out;
  };
  const double handed = static_cast<double>(kHandedOver);
  for (const double rate : {2e7, 2e8}) {
    EXPECT_GT(longest(rate), 0.2 * handed / rate);
    EXPECT_LT(longest(rate), 3 * handed / rate);
  }
}

TEST_F(Simulate, AFasterPathIsNeverSlower) {
  double before = 1e9;
  for (const double rate : {1e7, 3e7, 1e8, 3e8, 1e9, 1e10}) {
    const auto seconds = plan(0, 1, rate).prediction.step_seconds;
    EXPECT_LE(seconds, before * 1.0001) << rate;
    before = seconds;
  }
}

TEST_F(Simulate, EveryTaskEndsAfterThoseItNeeds) {
  const auto laid_out = plan(0.5, 2, 1e8);
  const auto& tasks = laid_out.schedule.tasks;
  ASSERT_EQ(laid_out.prediction.tasks.size(), tasks.size());
  for (Index t = 0; t < tasks.size(); ++t) {
    const auto& times = laid_out.prediction.tasks[t];
    EXPECT_LE(times.start, times.end);
    for (const auto& need : tasks[t].needs) {
      if (!need.previous) {
        EXPECT_LE(laid_out.prediction.tasks[need.task].end, times.start + 1e-9);
      }
    }
  }
}

TEST_F(Simulate, TheSameTwice) {
  const auto one = plan(0.3, 2, 1e8).prediction, other = plan(0.3, 2, 1e8).prediction;
  EXPECT_EQ(one.step_seconds, other.step_seconds);
  EXPECT_EQ(one.stall_seconds, other.stall_seconds);
}

}  // namespace
}  // namespace spillway::plan
