// The search over the axes of a plan: where one axis takes what another wants, the second is searched again.
#include "spillway/plan/choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "spillway/base/field_json.h"
#include "spillway/plan/device_blocks.h"
#include "spillway/plan/saved_choice.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

/// A machine whose layers keep their saved activations in the memory that blocks could live in.
test::Case machine(std::mt19937& random) {
  test::Case out({.layers = 8, .tied = false, .tokens = 16, .micro_batches = 1, .chunk_elements = 4096});
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<>()(random));
  };
  out.rates = {.cores = 4,
               .update = between(1e6, 1e9),
               .update_cores = 2,
               .forward = between(1e-5, 1e-3),
               .backward = between(1e-4, 1e-3),
               .to_device = between(1e8, 1e10),
               .from_device = between(1e8, 1e10),
               .device_update = 1e10};
  out.rates.kept_forward = out.rates.forward;
  out.rates.kept_backward = 0.6 * out.rates.backward;
  out.budget.device = DeviceTier{.capacity = (2 + random() % 12) * 256 * KiB};
  out.budget.streams_weights = true;
  out.budget.saved_activations = {
      .blocks = {1, 2, 3, 4, 5, 6, 7, 8}, .token_bytes = 4096, .on_device = true, .layers = 8};
  return out;
}

Plan plan_of(const test::Case& it) {
  return make_plan(it.description, it.layout, it.budget, it.rates);
}

TEST(Choice, NoNeighbourOfTheChosenPlanIsFasterByMoreThanAPercent) {
  std::mt19937 random(11);
  std::size_t kept = 0, both = 0, fits = 0;
  for (int round = 0; round < 60; ++round) {
    const auto it = machine(random);
    const auto plan = if_it_fits([&] { return plan_of(it); });
    if (!plan) continue;
    ++fits;
    const auto& layers = plan->decisions.layers;
    kept += layers.keep > 0 ? 1U : 0U;
    both += layers.keep > 0 && plan->decisions.blocks != UpdatedThere{} ? 1U : 0U;
    if (layers == SavedLayers{}) continue;
    auto near = near_device_blocks(it.problem(), plan->decisions);
    std::ranges::copy(near_saved_activations(it.problem(), plan->decisions), std::back_inserter(near));
    for (const auto& decisions : near) {
      const auto same = [&](const Compared& other) { return other.decisions == decisions; };
      const auto at = std::ranges::find_if(plan->compared, same);
      ASSERT_NE(at, plan->compared.end()) << "round " << round;
      EXPECT_TRUE(!at->fits || kAsFast * at->step_seconds >= plan->prediction.step_seconds) << "round " << round;
    }
  }
  EXPECT_GT(fits, 40U);
  EXPECT_GT(kept, 10U);
  EXPECT_GT(both, 3U);
}

TEST(Choice, ThePlanListsForEachAxisOneChosenValueAndItsStep) {
  std::mt19937 random(5);
  std::size_t listed = 0;
  for (int round = 0; round < 20; ++round) {
    const auto it = machine(random);
    const auto plan = if_it_fits([&] { return plan_of(it); });
    if (!plan) continue;
    const auto told = make_json(summarize(*plan, it.description, it.layout, it.budget));
    for (const auto& decision : told["decisions"]) {
      ++listed;
      std::size_t chosen = 0;
      for (const auto& value : decision["compared"]) {
        EXPECT_FALSE(value["value"].get<std::string>().empty());
        if (!value["chosen"]) continue;
        ++chosen;
        EXPECT_DOUBLE_EQ(value["predicted_step_seconds"].get<double>(), plan->prediction.step_seconds);
      }
      EXPECT_EQ(chosen, 1U) << decision;
    }
  }
  EXPECT_GT(listed, 10U);
}

TEST(Choice, DurabilityAndLookaheadAreListedWithWhatTheyCost) {
  test::Case it;
  it.with_path();
  it.budget.durability = Durability::step;
  it.budget.dram = 32 * MiB;
  it.budget.placement.state = 0;
  const auto plan = plan_of(it);
  const auto durability = plan.compared_on(Axis::durability);
  ASSERT_EQ(durability.size(), 2U);
  EXPECT_NEAR(durability[0].step_seconds - durability[1].step_seconds, plan.durable_seconds, 1e-12);
  EXPECT_LT(durability[1].moved, durability[0].moved);
}

TEST(Choice, LayersThatWereAskedAreObeyedBesideTheFastestBlocks) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    auto it = machine(random);
    it.budget.saved_activations.keep = 2;
    const auto plan = if_it_fits([&] { return plan_of(it); });
    if (!plan) continue;
    EXPECT_EQ(plan->keeping.size(), 2U);
    for (const auto& other : plan->compared_on(Axis::device_blocks)) EXPECT_EQ(other.decisions.layers.keep, 2U);
  }
}

TEST(Choice, OwnWeightsAreComparedBesideLayersThatWereAskedToo) {
  test::Shape shape{.layers = 4, .hidden = 128, .ffn = 512, .tied = false, .micro_batches = 4, .chunk_elements = 2048};
  shape.virtual_ranks = 4;
  test::Case it(shape);
  it.with_path();
  it.description.world.size = 4;
  it.budget.saved_activations = {.blocks = {1, 2, 3, 4}, .token_bytes = 16, .layers = 4};
  for (const auto keep : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(2)}) {
    it.budget.saved_activations.keep = keep;
    it.budget.dram = GiB;
    const auto roomy = plan_of(it);
    it.budget.dram = roomy.dram_peak - roomy.resident / 2;  // all weights of all do not stay
    const auto plan = plan_of(it);
    ASSERT_GT(plan.path_bytes, 0U);
    const auto compared = plan.compared_on(Axis::process_weights);
    ASSERT_GE(compared.size(), 2U) << "each keeps all, and each keeps its own";
    EXPECT_FALSE(compared[0].decisions.own_weights);
    EXPECT_TRUE(compared[1].decisions.own_weights);
    if (keep) {
      for (const auto& other : plan.compared) EXPECT_EQ(other.decisions.layers.keep + other.decisions.layers.spill, 2U);
    }
  }
}

TEST(Choice, OtherRanksFollowTheDecisionsOfTheOneWithMostToKeep) {
  std::mt19937 random(9);
  std::size_t shared = 0;
  for (int round = 0; round < 12; ++round) {
    auto it = machine(random);
    test::Shape shape{.layers = 4, .tied = false, .tokens = 16, .micro_batches = 4, .chunk_elements = 2048};
    shape.virtual_ranks = 4;
    it.description = test::describe(shape);
    it.description.step_tokens = 2 * it.description.tokens;
    it.description.world.size = 2;
    it.layout = it.description.layout();
    it.budget.saved_activations.blocks = {1, 2, 3, 4};
    it.budget.device->capacity = 1 * GiB;
    if (round % 2 == 1) it.with_path();
    std::vector<Plan> plans;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      it.description.world.rank = rank;
      plans.push_back(plan_of(it));
    }
    EXPECT_EQ(plans[0].decisions.blocks, plans[1].decisions.blocks);
    EXPECT_EQ(plans[0].decisions.own_weights, plans[1].decisions.own_weights);
    shared += plans[1].compared_on(Axis::device_blocks).empty() ? 0 : 1;
  }
  EXPECT_EQ(shared, 12U) << "each rank tells what was compared";
}

}  // namespace
}  // namespace spillway::plan
