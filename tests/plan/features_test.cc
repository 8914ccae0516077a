// Features of images are an object of the step: they wait in memory for the first layer's backward pass, or on a path.
#include <gtest/gtest.h>

#include <string>

#include "spillway/base/error.h"
#include "spillway/plan/json.h"
#include "spillway/plan/pass_seconds.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/room.h"
#include "spillway/plan/search.h"
#include "spillway/plan/summary.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

constexpr Bytes kFeatures = 512 * KiB;

class FeaturesOfImages : public ::testing::Test {
 protected:
  FeaturesOfImages() {
    it_.description.feature_bytes = kFeatures;
    it_.budget.durability = Durability::none;
    it_.rates.copy = 1e9;
  }
  [[nodiscard]] Plan plan() const { return make_plan(it_.description, it_.layout, it_.budget, it_.rates); }
  [[nodiscard]] PlannedFeatures told(const Plan& plan) const {
    return summarize(plan, it_.description, it_.layout, it_.budget).image_features.value();
  }

  test::Case it_{{.layers = 6, .hidden = 256, .ffn = 1024, .chunk_elements = 1 << 16}};
};

TEST_F(FeaturesOfImages, StayInMemoryWithoutAPathAndCount) {
  const auto found = plan();
  EXPECT_EQ(told(found).tier, "dram");
  EXPECT_EQ(told(found).bytes, kFeatures);
  EXPECT_TRUE(found.schedule.activations.empty());
  it_.description.feature_bytes = 0;
  EXPECT_LT(plan().dram_peak, found.dram_peak);
  EXPECT_FALSE(summarize(plan(), it_.description, it_.layout, it_.budget).image_features);
}

TEST_F(FeaturesOfImages, GoToAPathWhenMemoryIsShort) {
  it_.with_path();
  EXPECT_EQ(told(plan()).tier, "dram");
  const auto problem = it_.problem();
  it_.budget.dram = room_of(problem, 0).fixed + smallest_arena(problem);
  const auto found = plan();
  EXPECT_EQ(told(found).tier, "paths");
  EXPECT_LE(found.dram_peak, it_.budget.dram);
  EXPECT_EQ(found.path_breakdown.at("vision features"), 1 * MiB);
}

TEST_F(FeaturesOfImages, CrossAPathOnceEachWayInAStep) {
  it_.with_path();
  it_.budget.placement = {.weight = 1, .state = 1, .grad = 1, .activation = 0};
  const auto found = plan();
  it_.description.feature_bytes = 0;
  const auto before = plan();
  EXPECT_EQ(found.written_per_step, before.written_per_step + kFeatures);
  EXPECT_EQ(found.read_per_step, before.read_per_step + kFeatures);
}

TEST_F(FeaturesOfImages, AreNoObjectWhereTheFirstLayerHasNoBackwardPass) {
  it_ = test::Case({.layers = 3, .tied = false, .frozen = "^layers\\.0|embed"});
  it_.description.feature_bytes = kFeatures;
  EXPECT_FALSE(has_features(it_.description, it_.layout));
  const auto found = plan();
  for (const auto& pass : found.schedule.passes) EXPECT_EQ(pass[Operand::features], kNone);
  EXPECT_FALSE(summarize(found, it_.description, it_.layout, it_.budget).image_features);
}

TEST_F(FeaturesOfImages, HaveOneBufferOfTheTwoPassesWhileTheyStay) {
  const auto found = plan();
  std::vector<Index> buffers;
  for (const auto& pass : found.schedule.passes) {
    if (pass[Operand::features] == kNone) continue;
    EXPECT_EQ(pass.block, it_.layout.layers().front());
    buffers.push_back(pass[Operand::features]);
  }
  ASSERT_EQ(buffers.size(), 2U);
  EXPECT_EQ(buffers[0], buffers[1]);
  EXPECT_EQ(found.schedule.buffers[buffers[0]].bytes, kFeatures);
}

TEST_F(FeaturesOfImages, SecondsOfTheTowerAreThoseOfTheFirstLayer) {
  const auto before = plan();
  it_.rates.entry_forward = 0.5;
  it_.rates.entry_backward = 0.25;
  const auto found = plan();
  EXPECT_NEAR(found.prediction.step_seconds, before.prediction.step_seconds + 0.75, 0.1);
  const auto& schedule = found.schedule;
  for (Index p = 0; p < schedule.passes.size(); ++p) {
    const auto& pass = schedule.passes[p];
    const bool first = traits(pass.kind).of_layer && pass.block == it_.layout.layers().front();
    EXPECT_EQ(pass_seconds(schedule, it_.layout, it_.rates, p) > 0.2, first) << p;
  }
}

TEST_F(FeaturesOfImages, ThatFitNowhereAreRefusedWithAPath) {
  it_.description.feature_bytes = 64 * MiB;
  it_.budget.dram = kEngineBytes + 72 * MiB;
  it_.description.tokens = 1 << 14;
  try {
    static_cast<void>(plan());
    FAIL() << "no refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("with --storage DIR"), std::string::npos) << error.what();
  }
}

TEST_F(FeaturesOfImages, AreInTheDescriptionAsText) {
  EXPECT_EQ(parse_description(to_json(it_.description)).feature_bytes, kFeatures);
}

}  // namespace
}  // namespace spillway::plan
