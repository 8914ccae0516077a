#include "spillway/plan/summary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "spillway/base/field_json.h"
#include "spillway/plan/fits_fields.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> out;
  for (const auto& [key, value] : object.items()) out.insert(key);
  return out;
}

class Summary : public ::testing::Test {
 protected:
  [[nodiscard]] PlanSummary summarize_case() const {
    const auto plan = make_plan(it_.description, it_.layout, it_.budget, it_.rates);
    return summarize(plan, it_.description, it_.layout, it_.budget);
  }
  test::Case it_{{.layers = 2, .hidden = 64, .ffn = 256, .chunk_elements = 4096}};
};

TEST_F(Summary, BytesOfATierSumToItsPeak) {
  it_.with_path();
  it_.budget.placement.state = 0;
  const auto summary = summarize_case();
  ASSERT_EQ(summary.tiers.size(), 2U);
  for (const auto& tier : summary.tiers) {
    Bytes held = 0;
    for (const auto& it : summary.bytes) held += it.tier == tier.name ? it.bytes : 0;
    EXPECT_EQ(held, tier.planned_peak) << tier.name;
  }
  EXPECT_GT(summary.path_bytes_per_step.at("path:0").written, 0U);
}

TEST_F(Summary, OfOneProcessInHostMemoryHasTheKeysOfPlanJson) {
  const auto written = make_json(summarize_case());
  const std::set<std::string> always{"fits",
                                     "parameters",
                                     "learning_parameters",
                                     "weight_dtype",
                                     "compute_dtype",
                                     "optimizer",
                                     "bytes",
                                     "state_format",
                                     "bytes_per_parameter",
                                     "kept_logits",
                                     "tiers",
                                     "decisions",
                                     "durability",
                                     "predicted_step_seconds",
                                     "tokens_per_second",
                                     "updates",
                                     "bottleneck",
                                     "boundary_activations",
                                     "seconds",
                                     "lookahead"};
  EXPECT_EQ(keys_of(written), always);
  EXPECT_EQ(keys_of(written.at("bytes").at(0)), (std::set<std::string>{"class", "tier", "bytes"}));
  EXPECT_EQ(keys_of(written.at("seconds")), (std::set<std::string>{"compute", "transfer", "update", "stall"}));
}

TEST_F(Summary, OfPiecesThatPassesAskForTellsWhereTheyLieFirst) {
  it_ = test::Case({.layers = 2, .experts = 4, .asked = 0.5});
  EXPECT_EQ(summarize_case().pieces.value().in_memory, 8U) << "there is no path";
  it_.with_path();
  it_.budget.placement.weight = 0.5;
  const auto half = summarize_case().pieces.value();
  EXPECT_EQ(half.pieces, 8U);
  EXPECT_GT(half.in_memory, 0U);
  EXPECT_LT(half.in_memory, 8U);
  EXPECT_EQ(half.on_device, 0U);
  it_.budget.device = {.capacity = 1 * GiB, .weight = 1};
  EXPECT_EQ(summarize_case().pieces.value().on_device, 8U);
}

TEST_F(Summary, OfLayersThatMayKeepTellsThatNobodyAskedForANumber) {
  it_.budget.saved_activations = {.blocks = {1, 2}, .token_bytes = 100, .layers = 2};
  EXPECT_TRUE(make_json(summarize_case()).at("saved_activations").at("asked").is_null());
  it_.budget.saved_activations.keep = 1;
  const auto asked = make_json(summarize_case()).at("saved_activations");
  EXPECT_EQ(asked.at("asked"), 1);
  EXPECT_EQ(asked.at("keep"), 1);
  EXPECT_FALSE(asked.contains("seconds_of_a_layer"));
}

TEST_F(Summary, OfADeviceHasItsLinkAndItsLanes) {
  it_.budget.streams_weights = true;
  it_.budget.device = DeviceTier{.capacity = 64 * MiB, .work = 64 * KiB};
  it_.rates.to_device = it_.rates.from_device = 1e9;
  const auto written = make_json(summarize_case());
  EXPECT_TRUE(written.at("seconds").contains("to_device"));
  EXPECT_TRUE(written.at("lookahead").contains("device"));
  EXPECT_EQ(keys_of(written.at("device_bytes_per_step")), (std::set<std::string>{"to_device", "from_device"}));
}

TEST(FieldJson, MapsWithoutEntriesAndOptionalsWithoutAValueAreLeftOut) {
  EXPECT_EQ(keys_of(make_json(LongerStep{})), std::set<std::string>{"fits"});
  EXPECT_FALSE(make_json(PlanSummary{}).contains("path_bytes_per_step"));
  EXPECT_TRUE(make_json(RemotePaths{}).at("seconds").is_null()) << "its field says that it is written";
}

}  // namespace
}  // namespace spillway::plan
