#include "spillway/plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "spillway/base/error.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

Plan plan_in_dram(const test::Shape& shape, const state::Layout& layout) {
  Budget budget;
  budget.dram = 1 << 30;
  return make_plan(test::describe(shape), layout, budget, {});
}

TEST(Planner, AboveWhatIsResidentThereIsRoomForTheLargestChunk) {
  for (const std::uint64_t chunk_elements : {2048U, 8192U, 1U << 22U}) {
    for (const std::uint64_t tokens : {1U, 8U, 128U}) {
      const test::Shape shape{.layers = 2, .hidden = 16, .ffn = 32, .tokens = tokens, .chunk_elements = chunk_elements};
      const auto description = test::describe(shape);
      const state::Layout layout(description.blocks, description.chunk_elements);
      const auto plan = plan_in_dram(shape, layout);
      EXPECT_GE(plan.arena, plan.resident + largest_chunk_bytes(description.rule(), layout))
          << chunk_elements << " elements a chunk, " << tokens << " tokens";
    }
  }
}

TEST(Planner, WhatIsLeftKeepsLogitsSliceBySlice) {
  const auto description = test::describe({.layers = 2, .vocabulary = 512, .tokens = 64, .chunk_elements = 2048});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto& head = layout.blocks().front();  // tied
  ASSERT_GT(head.chunks, 4U);
  const auto slice = 64 * head.slice_rows * state::field_bytes(description.computes()).weight;
  Rates rates{.forward = 1e-3, .backward = 3e-3, .head_loss = 1e-3, .head_gradient = 3e-3};
  Budget budget;
  budget.dram = 1 << 30;
  const auto none = make_plan(description, layout, budget, rates);
  EXPECT_EQ(none.kept_logits, 0U) << "nobody said that logits are kept";
  budget.keeps_logits = true;
  for (std::uint64_t slices = 0; slices <= head.chunks; ++slices) {
    budget.dram = none.dram_peak + (slices + 1) * slice - 1;
    const auto plan = make_plan(description, layout, budget, rates);
    ASSERT_EQ(plan.dram_peak - plan.kept_logits, none.dram_peak);
    EXPECT_EQ(plan.kept_slices, slices);
    EXPECT_EQ(plan.kept_logits, slices * slice);
    EXPECT_NEAR(none.prediction.step_seconds - plan.prediction.step_seconds, static_cast<double>(slices) * 1e-3, 1e-4);
  }
}

/// Everything on paths of these capacities.
Plan plan_on_paths(const std::vector<Bytes>& capacities, const std::vector<double>& rates = {},
                   const std::vector<bool>& remote = {}) {
  const auto description = test::describe({.layers = 4, .hidden = 256, .ffn = 1024, .chunk_elements = 1 << 18});
  const state::Layout layout(description.blocks, description.chunk_elements);
  Budget budget;
  budget.dram = 1 << 30;
  budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
  budget.durability = Durability::none;
  for (std::size_t p = 0; p < capacities.size(); ++p) {
    budget.paths.push_back(
        {.name = text("path:", p), .capacity = capacities[p], .remote = !remote.empty() && remote[p]});
  }
  Rates machine;
  for (const auto rate : rates) machine.paths.push_back({.read = rate, .write = rate, .mixed = rate});
  return make_plan(description, layout, budget, machine);
}

/// Bytes of a step, per parameter, over a path that holds everything.
double moved_per_parameter(state::StateFormat format) {
  const auto description = test::describe({.layers = 4,
                                           .hidden = 1024,
                                           .ffn = 4096,
                                           .vocabulary = 4096,
                                           .tokens = 16,
                                           .micro_batches = 1,
                                           .chunk_elements = 1 << 20,
                                           .format = format});
  const auto layout = description.layout();
  Budget budget;
  budget.dram = 1 << 30;
  budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 1};
  budget.durability = Durability::none;
  budget.paths.push_back({.capacity = 4 * GiB});
  const auto plan = make_plan(description, layout, budget, {});
  return static_cast<double>(plan.read_per_step + plan.written_per_step) / static_cast<double>(layout.parameters());
}

TEST(Planner, AFormatMovesFewerBytes) {
  const auto exact = moved_per_parameter(state::StateFormat::exact);
  EXPECT_NEAR(exact - moved_per_parameter(state::StateFormat::bf16), 8, 0.1) << "4 bytes less, read and written";
  EXPECT_NEAR(exact - moved_per_parameter(state::StateFormat::int8), 12, 0.2);
}

/// Bytes by class in memory and on a path, of a model of which `frozen` matches.
struct Bill {
  Bytes weight = 0, state = 0, grad = 0, durability = 0, written = 0, path = 0;
};

Bill bill(const std::string& frozen, double share, Durability durability) {
  const auto description = test::describe(
      {.layers = 4, .hidden = 256, .ffn = 1024, .tokens = 16, .chunk_elements = 1 << 18, .frozen = frozen});
  const auto layout = description.layout();
  Budget budget;
  budget.dram = 1 << 30;
  budget.placement = {.weight = share, .state = share, .grad = share, .activation = 1};
  budget.durability = durability;
  budget.checkpoints = 2;
  budget.paths.push_back({.capacity = 4 * GiB});
  auto plan = make_plan(description, layout, budget, {});
  auto& from = share == 1 ? plan.dram_breakdown : plan.path_breakdown;
  return {from["weight"],        from["state"],  from["grad"], plan.path_breakdown["durability"],
          plan.written_per_step, plan.path_bytes};
}

TEST(Planner, WhatIsFrozenTakesItsWeightAndNothingElse) {
  const auto all = bill("", 1, Durability::none), some = bill("up|down|embed", 1, Durability::none);
  EXPECT_EQ(some.weight, all.weight);
  EXPECT_LT(some.state, all.state / 100);
  EXPECT_LT(some.grad, all.grad / 20);
}

TEST(Planner, WhatIsFrozenLiesOnAPathOnceHoweverManyCheckpointsThereAre) {
  const auto all = bill("", 0, Durability::step), some = bill("up|down|embed", 0, Durability::step);
  EXPECT_NEAR(static_cast<double>(some.weight), static_cast<double>(all.weight), 16.0 * MiB) << "pieces are rounded up";
  EXPECT_LT(some.written, all.written / 100);
  EXPECT_LT(some.path, some.weight + 5 * 30 * MiB) << "five small chunks, their snapshots and gradients";
  const auto kept = bill("up|down|embed", 1, Durability::step);
  EXPECT_GE(kept.durability, some.weight) << "what stays in memory has a snapshot, too";
  EXPECT_LT(kept.durability, some.weight + 5 * 30 * MiB);
}

TEST(Planner, AModelThatIsWhollyFrozenIsRefused) {
  try {
    bill(".", 1, Durability::none);
    FAIL() << "planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("nothing to train"), std::string::npos) << error.what();
  }
}

Bytes sum(const std::vector<Bytes>& values) {
  return std::accumulate(values.begin(), values.end(), Bytes{0});
}

TEST(Planner, OnePathReservesWhatIsNeeded) {
  const auto plan = plan_on_paths({1 * GiB});
  EXPECT_EQ(plan.volumes, std::vector<Bytes>{plan.path_bytes});
}

TEST(Planner, SeveralPathsReserveByTheirRatesWithRoomToTakeOver) {
  const auto plan = plan_on_paths({1 * GiB, 1 * GiB, 1 * GiB}, {4e8, 4e8, 2e8});
  ASSERT_EQ(plan.volumes.size(), 3U);
  EXPECT_EQ(plan.volumes[0], plan.volumes[1]);
  EXPECT_NEAR(static_cast<double>(plan.volumes[0]), 2.0 * static_cast<double>(plan.volumes[2]), 2.0 * MiB);
  EXPECT_GE(sum(plan.volumes), plan.path_bytes * 3 / 2);
}

/// Two sockets, a drive by each, and two small ones: what those cannot take goes to the drive by the GPU first.
TEST(Planner, OfEqualPathsThoseByTheDeviceAreFilledFirst) {
  const std::vector<Bytes> capacities = {1 * GiB, 1 * GiB, 1 * MiB, 1 * MiB};
  const std::vector<double> equal(4, 1e9);
  const auto first = plan_on_paths(capacities, equal, {false, true, false, true}).volumes;
  const auto second = plan_on_paths(capacities, equal, {true, false, false, true}).volumes;
  EXPECT_GT(first[0], first[1] + MiB);
  EXPECT_EQ(second, (std::vector<Bytes>{first[1], first[0], first[2], first[3]}));
}

TEST(Planner, PathsThatAreOnlyTogetherLargeEnoughAreUsedUp) {
  const auto needed = plan_on_paths({1 * GiB}).path_bytes;
  const std::vector<Bytes> capacities = {needed / 2 / MiB * MiB, needed - needed / 2 / MiB * MiB};
  const auto plan = plan_on_paths(capacities, {1e8, 9e8});
  EXPECT_EQ(plan.volumes, capacities);
}

TEST(Planner, PathsTooSmallAreRefusedByName) {
  const auto needed = plan_on_paths({1 * GiB}).path_bytes;
  try {
    plan_on_paths({needed / 4, needed / 4});
    FAIL() << "fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string message = error.what();
    for (const auto& word : {human(needed), std::string("path:0"), std::string("path:1"), std::string("--storage")}) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    }
  }
}

/// Forward passes that are too short for the updates behind them; those have cores of their own, or none.
Plan plan_of_updates(Updates updates, unsigned update_cores, Bytes dram = 1 * GiB) {
  const auto description =
      test::describe({.layers = 8, .hidden = 128, .ffn = 512, .tied = false, .chunk_elements = 1 << 14});
  const state::Layout layout(description.blocks, description.chunk_elements);
  Budget budget;
  budget.dram = dram;
  budget.update_schedule = updates;
  budget.clipping = false;
  Rates rates;
  rates.cores = 2;
  rates.update = 1e8;
  rates.update_cores = update_cores;
  rates.forward = 0.0005;
  rates.backward = 0.002;
  return make_plan(description, layout, budget, rates);
}

TEST(Planner, UpdatesAreEarlyByThemselvesOnlyWhereThatIsFaster) {
  const auto shared = plan_of_updates(Updates::automatic, 0);
  EXPECT_EQ(shared.early_chunks, 0U);
  EXPECT_EQ(shared.undo, 0U);
  const auto deferred = plan_of_updates(Updates::deferred, 1), early = plan_of_updates(Updates::early, 1);
  EXPECT_EQ(deferred.early_chunks, 0U);
  EXPECT_GT(early.early_chunks, 0U);
  EXPECT_GT(early.undo, 0U);
  const auto chosen = plan_of_updates(Updates::automatic, 1);
  EXPECT_GT(chosen.early_chunks, 0U);
  EXPECT_LE(chosen.early_chunks, early.early_chunks);
  EXPECT_LE(chosen.prediction.step_seconds, early.prediction.step_seconds);
  EXPECT_LT(chosen.prediction.step_seconds, deferred.prediction.step_seconds);
  EXPECT_NEAR(chosen.early_saves, deferred.prediction.step_seconds - chosen.prediction.step_seconds, 1e-9);
  // With no byte to spare for old versions nothing is early.
  EXPECT_EQ(plan_of_updates(Updates::automatic, 1, deferred.dram_peak).dram_peak, deferred.dram_peak);
}

TEST(Planner, HoldsItsBudgetAndIsNoSlowerWhenItIsLarger) {
  const auto description = test::describe({.layers = 6, .hidden = 128, .ffn = 512, .chunk_elements = 1 << 16});
  const state::Layout layout(description.blocks, description.chunk_elements);
  Budget budget;
  budget.paths = {{.name = "path:0", .capacity = 1 * GiB}};
  budget.durability = Durability::none;
  Rates rates;
  rates.cores = 2;
  rates.update = 1e9;
  rates.forward = 0.001;
  rates.backward = 0.003;
  rates.paths = {{.read = 1e8, .write = 1e8, .mixed = 1e8}};
  double before = 1e9;
  Bytes moved = 0;
  int fitted = 0;
  for (budget.dram = kEngineBytes; budget.dram < kEngineBytes + 64 * MiB; budget.dram += 1 * MiB) {
    try {
      const auto plan = make_plan(description, layout, budget, rates);
      EXPECT_LE(plan.dram_peak, budget.dram);
      EXPECT_LE(plan.prediction.step_seconds, 1.02 * before) << human(budget.dram);
      before = std::min(before, plan.prediction.step_seconds);
      moved = plan.read_per_step + plan.written_per_step;
      ++fitted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      EXPECT_EQ(fitted, 0) << "a larger budget does not fit: " << error.what();
    }
  }
  EXPECT_GT(fitted, 10);
  EXPECT_EQ(moved, 0U) << "64 MiB hold everything";
}

/// A model of matrices over a slow path, and in memory.
Plan subspace_plan(bool on_path, const std::string& subspace, Bytes dram = 1 * GiB) {
  const auto description = test::describe({.layers = 6,
                                           .hidden = 256,
                                           .ffn = 1024,
                                           .embedding = false,
                                           .head = false,
                                           .micro_batches = 1,
                                           .chunk_elements = 1 << 16,
                                           .subspace = subspace,
                                           .rank = 128});
  Budget budget;
  budget.dram = dram;
  if (on_path) {
    budget.paths.push_back({.capacity = 4 * GiB});
    budget.placement = {0, 0, 0, 1};
    budget.durability = Durability::none;
  }
  Rates rates;
  rates.cores = 2;
  rates.update_cores = 2;
  rates.update = 1e9;
  rates.forward = 0.02;
  rates.backward = 0.06;
  rates.paths = {{.read = 1e8, .write = 1e8, .mixed = 1e8}};
  return make_plan(description, description.layout(), budget, rates);
}

TEST(Planner, SubspacesHelpOverASlowPathAndNotWhereAllIsHidden) {
  const auto slow = subspace_plan(true, "up|down");
  ASSERT_TRUE(slow.in_full);
  EXPECT_TRUE(slow.in_full->fits);
  EXPECT_LT(slow.prediction.step_seconds, 0.8 * slow.in_full->hidden_seconds);
  EXPECT_LT(slow.read_per_step + slow.written_per_step, slow.in_full->on_paths / 2);
  EXPECT_FALSE(no_help(slow));

  const auto full = subspace_plan(true, "");
  EXPECT_FALSE(full.in_full);
  EXPECT_EQ(full.prediction.step_seconds, slow.in_full->hidden_seconds);
  EXPECT_GE(slow.in_full->step_seconds, slow.in_full->hidden_seconds);
  EXPECT_EQ(full.read_per_step + full.written_per_step, slow.in_full->on_paths);

  const auto hidden = subspace_plan(false, "up|down");
  EXPECT_TRUE(no_help(hidden)) << hidden.prediction.step_seconds << " s, in full " << hidden.in_full->hidden_seconds;
  // Backward of 6 layers and the norm, on average 0.06 s; in full 3 products where here are 2 and a sixteenth
  // (d = n / 2, 256 x 1024).
  const auto longer = 7 * 0.06 * (3 / (2 + 128.0 * 128 / (256 * 1024)) - 1);
  EXPECT_NEAR(hidden.in_full->step_seconds - hidden.in_full->hidden_seconds, longer, 0.02 * longer);
}

TEST(Planner, SubspacesCountTheirProjectorsAndFitWhereTheModelInFullDoesNot) {
  const auto plan = subspace_plan(false, "up|down");
  EXPECT_GT(plan.auxiliary, 12 * 2 * 4 * (256 + 1024) * sizeof(float));
  EXPECT_EQ(plan.dram_peak, plan.arena + kEngineBytes + plan.auxiliary);
  const auto tight = subspace_plan(false, "up|down", plan.dram_peak);
  ASSERT_TRUE(tight.in_full);
  EXPECT_FALSE(tight.in_full->fits);
  EXPECT_FALSE(no_help(tight));
  EXPECT_THROW(static_cast<void>(subspace_plan(false, "up|down", plan.dram_peak - 1)), Error);
}

/// One of so many processes, with everything in memory.
Plan plan_of_rank(std::size_t size, Bytes dram, bool own_weights = false) {
  auto description = test::describe({.layers = 6,
                                     .hidden = 128,
                                     .ffn = 512,
                                     .tied = false,
                                     .micro_batches = 4,
                                     .chunk_elements = 2048,
                                     .virtual_ranks = 4});
  description.world = {.size = size, .rank = 0};
  Budget budget;
  budget.dram = dram;
  budget.own_weights = own_weights;
  return make_plan(description, description.layout(), budget, {});
}

TEST(Planner, AProcessKeepsItsPartOfTheStateAlone) {
  EXPECT_LT(plan_of_rank(4, GiB, true).resident, plan_of_rank(1, GiB).resident * 3 / 10);
}

TEST(Planner, SeveralProcessesFitInABudgetThatIsTooSmallForOne) {
  const auto least = [](std::size_t size) {
    Bytes fails = 0, fits = GiB;
    while (fits - fails > 64 * KiB) {
      const auto dram = (fits + fails) / 2;
      try {
        static_cast<void>(plan_of_rank(size, dram));
        fits = dram;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
        fails = dram;
      }
    }
    return fits;
  };
  const auto several = least(4);
  EXPECT_LT(several, least(1));
  const auto plan = plan_of_rank(4, several);
  EXPECT_TRUE(plan.decisions.own_weights);
  EXPECT_LE(plan.dram_peak, several);
  EXPECT_FALSE(plan_of_rank(4, GiB).decisions.own_weights) << "which takes more of the network";
}

}  // namespace
}  // namespace spillway::plan
