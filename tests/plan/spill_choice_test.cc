// How many layers send what autograd saves of them to a path: as many as that makes a step shorter, and none where it
// takes longer than computing it again.
#include "spillway/plan/spill_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/summary.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

constexpr std::size_t kEight = 8;

class SpillChoice : public ::testing::Test {
 protected:
  /// Everything stays in DRAM, in which no layer can keep anything, and a path has nothing else to do.
  SpillChoice() {
    it_.with_path();
    it_.budget.dram = 96 * MiB;
    it_.budget.durability = Durability::none;
    it_.budget.placement = {.weight = 1, .state = 1, .grad = 1, .activation = 1};
    it_.budget.saved_activations = {.blocks = {1, 2, 3, 4, 5, 6, 7, 8},
                                    .token_bytes = 1 << 20,
                                    .layers = kEight,
                                    .spill = Spill::automatic,
                                    .spilled_token_bytes = 2000,
                                    .graph_token_bytes = 10};
    it_.rates.update = 1e10;
    it_.rates.kept_forward = 1e-3, it_.rates.kept_backward = 2e-3;
    it_.rates.copy = 258048e4;  // 0.1 ms
  }
  [[nodiscard]] Plan plan() const { return make_plan(it_.description, it_.layout, it_.budget, it_.rates); }
  void set_path(double rate) { it_.rates.paths.assign(1, {.read = rate, .write = rate, .mixed = rate}); }
  [[nodiscard]] PlannedActivations told(const Plan& plan) const {
    return summarize(plan, it_.description, it_.layout, it_.budget).saved_activations.value();
  }

  test::Case it_{{.layers = kEight, .hidden = 64, .ffn = 256, .chunk_elements = 4096}};
};

TEST_F(SpillChoice, OnAFastPathAllLayersSpill) {
  auto never = it_;
  never.budget.saved_activations.spill = Spill::never;
  const auto before = make_plan(never.description, never.layout, never.budget, never.rates);
  EXPECT_TRUE(before.spilling.empty());
  const auto found = plan();
  EXPECT_EQ(found.spilling.size(), kEight);
  EXPECT_TRUE(found.keeping.empty());
  EXPECT_LT(found.prediction.step_seconds, before.prediction.step_seconds - kEight * 0.5e-3);
  EXPECT_LE(found.dram_peak, it_.budget.dram);
  EXPECT_EQ(found.saved, kEight * 10 * it_.description.tokens) << "their graphs stay in memory";
  const auto each = spilled_bytes(it_.description, it_.budget.saved_activations);
  EXPECT_EQ(found.path_breakdown.at("saved activations"), kEight * round_up(each, MiB));
  EXPECT_EQ(found.written_per_step, before.written_per_step + kEight * each);
  EXPECT_EQ(found.read_per_step, before.read_per_step + kEight * each);
  EXPECT_EQ(told(found).spill, kEight);
  EXPECT_EQ(told(found).spilled_blocks.size(), kEight);
  EXPECT_EQ(told(found).spilled_bytes, kEight * each);
  const auto seconds = told(found).seconds_of_a_layer.value();
  EXPECT_GT(seconds.recompute, seconds.paths);
}

TEST_F(SpillChoice, OnASlowPathTheyRecomputeAndThePlanSaysWhatSpillingWouldTake) {
  set_path(1e6);
  const auto found = plan();
  EXPECT_TRUE(found.spilling.empty());
  EXPECT_EQ(found.path_bytes, 0U);
  const auto why = told(found).spill_why.value();
  EXPECT_NE(why.find("0.516 s of the paths"), std::string::npos) << why;
  EXPECT_NE(why.find("computing it again takes 0.001 s"), std::string::npos) << why;
  EXPECT_NE(why.find("would hardly be shorter"), std::string::npos) << why;
}

TEST_F(SpillChoice, OnPathsBetweenThemTheFastestOfThoseThatWereTriedIsTaken) {
  for (const auto rate : {1e7, 3e7, 1e8, 2e8, 3e8, 6e8}) {
    set_path(rate);
    const auto found = plan();
    for (const auto& it : found.compared_on(Axis::saved_activations)) {
      EXPECT_TRUE(!it.fits || it.step_seconds >= 0.98 * found.prediction.step_seconds) << rate;
    }
  }
}

TEST_F(SpillChoice, CopyingThatTakesLongerThanComputingAgainIsNotTried) {
  it_.rates.copy = 258048e3 / 2;
  EXPECT_TRUE(plan().spilling.empty());
}

TEST_F(SpillChoice, NothingGoesToAPathForItThatIsNotUsedOtherwise) {
  it_.budget.durability.reset();
  const auto found = plan();
  EXPECT_TRUE(found.spilling.empty());
  EXPECT_EQ(found.durability, Durability::none);
  EXPECT_NE(told(found).spill_why.value().find("nothing else goes to a path"), std::string::npos);
}

TEST_F(SpillChoice, WhatIsAskedKeepsAsMuchAsHasRoomAndSpillsTheRest) {
  it_.budget.saved_activations.keep = kEight;
  it_.budget.saved_activations.token_bytes = 4 * MiB / static_cast<double>(it_.description.tokens);
  it_.budget.dram = 256 * MiB;
  it_.budget.update_schedule = Updates::deferred;
  const auto roomy = plan();
  EXPECT_EQ(roomy.keeping.size(), kEight);
  it_.budget.dram = roomy.dram_peak - 10 * MiB;
  const auto found = plan();
  EXPECT_EQ(found.keeping.size() + found.spilling.size(), kEight);
  EXPECT_GT(found.spilling.size(), 0U);
  it_.budget.saved_activations.spill = Spill::never;
  EXPECT_THROW(static_cast<void>(plan()), Error);
}

TEST_F(SpillChoice, AllThatDoNotRecomputeSpillWhereThatIsAsked) {
  it_.budget.saved_activations.token_bytes = 1;
  it_.budget.saved_activations.spill = Spill::all;
  for (const auto layers : {std::size_t{3}, kEight}) {
    it_.budget.saved_activations.keep = layers;
    const auto found = plan();
    EXPECT_EQ(found.spilling.size(), layers);
    EXPECT_TRUE(found.keeping.empty());
  }
  it_.budget.saved_activations.keep.reset();
  EXPECT_TRUE(plan().keeping.empty());
}

TEST_F(SpillChoice, FromADeviceTheyGoToTheHostsMemory) {
  it_.budget.device = DeviceTier{.capacity = 64 * MiB, .weight = 0, .activation = 0, .state = 0};
  it_.rates.to_device = it_.rates.from_device = 1e10;
  it_.budget.dram = 256 * MiB;
  it_.budget.saved_activations.keep = kEight;
  it_.budget.saved_activations.spill = Spill::all;
  set_path(1e6);
  const auto found = plan();
  EXPECT_EQ(found.spilling.size(), kEight);
  EXPECT_EQ(found.decisions.layers.home, TierId{TierKind::host}) << "the path is slower";
  EXPECT_EQ(told(found).spill_tier.value(), "dram");
  const auto each = spilled_bytes(it_.description, it_.budget.saved_activations);
  EXPECT_EQ(told(found).spilled_bytes, kEight * each);
  EXPECT_GE(found.from_device_per_step, kEight * each);
  EXPECT_GE(found.to_device_per_step, kEight * each);
  EXPECT_TRUE(found.schedule.activations.empty());
  it_.budget.saved_activations.on_device = true;
  it_.budget.saved_activations.keep.reset();
  const auto none = plan();
  EXPECT_TRUE(none.spilling.empty());
  EXPECT_NE(told(none).spill_why.value().find("simulated device"), std::string::npos);
}

TEST_F(SpillChoice, WithoutAPathTheyGoToALaterTierOfMemory) {
  it_.budget.paths.clear();
  it_.rates.paths.clear();
  it_.budget.durability.reset();
  it_.budget.dram = 1 * GiB;
  it_.budget.nodes = {{.id = 0, .capacity = 96 * MiB}, {.id = 2, .capacity = 256 * MiB}};
  it_.rates.nodes.assign(2, {.update = 1e9, .update_thread = 1e9, .read = 1e10});
  it_.budget.saved_activations.token_bytes = 128 * MiB / static_cast<double>(it_.description.tokens);
  const auto found = plan();
  EXPECT_EQ(found.spilling.size(), kEight);
  EXPECT_EQ(found.decisions.layers.home, (TierId{TierKind::host, 1}));
  EXPECT_TRUE(found.schedule.activations.empty()) << "nothing moves";
  EXPECT_GE(found.node_peaks[1], kEight * spilled_bytes(it_.description, it_.budget.saved_activations));
  EXPECT_LE(found.node_peaks[0], it_.budget.nodes[0].capacity);
  EXPECT_EQ(told(found).spill_tier.value(), "numa:2");
  it_.budget.nodes[1].capacity = 2 * MiB + 3 * spilled_bytes(it_.description, it_.budget.saved_activations);
  EXPECT_LT(plan().spilling.size(), kEight);
}

TEST_F(SpillChoice, ThoseThatSpillLieEvenlyBeforeThoseThatKeep) {
  const auto& saved = it_.budget.saved_activations;
  using Blocks = std::vector<Index>;
  EXPECT_EQ(spilling_blocks(it_.layout, saved, {.keep = 0, .spill = 8}), (Blocks{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(spilling_blocks(it_.layout, saved, {.keep = 2, .spill = 9}), (Blocks{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(spilling_blocks(it_.layout, saved, {.keep = 0, .spill = 4}), (Blocks{1, 3, 5, 7}));
  EXPECT_EQ(spilling_blocks(it_.layout, saved, {.keep = 8, .spill = 1}), Blocks{});
}

TEST_F(SpillChoice, SharesOfFewLayersAreAllDifferent) {
  using Shares = std::vector<std::size_t>;
  EXPECT_EQ(shares_to_spill(8), (Shares{0, 2, 4, 6, 8}));
  EXPECT_EQ(shares_to_spill(2), (Shares{0, 1, 2}));
  EXPECT_EQ(shares_to_spill(0), Shares{0});
}

}  // namespace
}  // namespace spillway::plan
