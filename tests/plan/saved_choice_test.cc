// How many layers keep what autograd saves of them: as many as have room, where that is faster, and never at the price
// of a path that was not needed.
#include "spillway/plan/saved_choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

constexpr std::size_t kLayers = 8;

class SavedChoice : public ::testing::Test {
 protected:
  SavedChoice() {
    it_.budget.saved_activations = {.blocks = {1, 2, 3, 4, 5, 6, 7, 8}, .token_bytes = 8192, .layers = kLayers};
    it_.rates.update = 1e10;
    it_.rates.kept_forward = 1e-3, it_.rates.kept_backward = 2e-3;
    it_.rates.tail_forward = it_.rates.tail_backward = 1e-6;
  }
  [[nodiscard]] Plan plan() const { return make_plan(it_.description, it_.layout, it_.budget, it_.rates); }
  [[nodiscard]] Plan plan_of(std::uint64_t keep) const {
    auto budget = it_.budget;
    budget.saved_activations.keep = keep;
    return make_plan(it_.description, it_.layout, budget, it_.rates);
  }
  [[nodiscard]] Bytes each() const { return saved_bytes(it_.description, it_.budget.saved_activations, 1); }

  test::Case it_{{.layers = kLayers, .hidden = 64, .ffn = 256, .chunk_elements = 4096}};
};

TEST_F(SavedChoice, TheLastLayersKeepAsManyAsHaveRoom) {
  const auto none = plan_of(0);
  EXPECT_TRUE(none.keeping.empty());
  EXPECT_EQ(each(), 8192 * it_.description.tokens);
  for (std::size_t layers = 0; layers <= kLayers; ++layers) {
    it_.budget.dram = none.dram_peak + layers * each() + each() / 2;
    const auto found = plan();
    std::vector<Index> last(layers);
    std::iota(last.begin(), last.end(), static_cast<Index>(1 + kLayers - layers));
    EXPECT_EQ(found.keeping, last);
    EXPECT_EQ(found.saved, layers * each());
    EXPECT_EQ(found.dram_peak, none.dram_peak + layers * each());
    EXPECT_NEAR(none.prediction.step_seconds - found.prediction.step_seconds, static_cast<double>(layers) * 1e-3, 2e-4);
    EXPECT_EQ(found.ample, layers == kLayers);
  }
}

TEST_F(SavedChoice, WhatIsNoFasterIsNotKept) {
  it_.rates.kept_backward = it_.rates.backward;
  EXPECT_TRUE(plan().keeping.empty());
  EXPECT_EQ(plan_of(kLayers).keeping.size(), kLayers) << "asked for, it is";
}

TEST_F(SavedChoice, OnlyThoseThatCanAndThatHaveABackwardPass) {
  it_.budget.saved_activations.blocks = {2, 3};
  EXPECT_EQ(plan().keeping, (std::vector<Index>{2, 3}));
  EXPECT_EQ(plan_of(kLayers).keeping, (std::vector<Index>{2, 3}));
  test::Case frozen({.layers = 3, .frozen = "^layers\\.0|embed"});
  frozen.budget.saved_activations = {.blocks = {1, 2, 3}, .token_bytes = 1, .layers = 3};
  frozen.rates.kept_forward = 1e-3, frozen.rates.kept_backward = 2e-3;
  const auto found = make_plan(frozen.description, frozen.layout, frozen.budget, frozen.rates);
  EXPECT_EQ(found.keeping, (std::vector<Index>{2, 3}));
}

/// The number that follows these words.
std::uint64_t number_after(const std::string& message, const std::string& words) {
  const auto at = message.find(words);
  return at == std::string::npos ? ~std::uint64_t{0} : std::stoull(message.substr(at + words.size()));
}

TEST_F(SavedChoice, WhatDoesNotFitIsRefusedWithNumbersThatFit) {
  it_.budget.dram = plan_of(0).dram_peak + 3 * each() + each() / 2;
  std::string message;
  try {
    static_cast<void>(plan_of(kLayers));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    message = error.what();
  }
  EXPECT_EQ(number_after(message, "--activation_recompute "), kLayers - 3) << message;
  EXPECT_EQ(plan_of(3).keeping.size(), 3U);
  it_.budget.dram = number_after(message, "--dram_budget ") * MiB;
  EXPECT_EQ(plan_of(kLayers).keeping.size(), kLayers) << message;
  it_.budget.dram = 1 * MiB;
  try {
    static_cast<void>(plan_of(kLayers));
    ADD_FAILURE() << "nothing fits";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the smallest plan"), std::string::npos) << error.what();
  }
}

TEST_F(SavedChoice, NothingGoesToAPathForIt) {
  const auto none = plan_of(0);
  it_.with_path();
  it_.budget.dram = none.dram_peak + (kLayers - 1) * each();
  const auto found = plan();
  EXPECT_EQ(found.path_bytes, 0U);
  EXPECT_EQ(found.keeping.size(), kLayers - 1);
  EXPECT_GT(plan_of(kLayers).path_bytes, 0U) << "unless it was asked for";
}

TEST_F(SavedChoice, WithPathsTheFastestIsNoSlowerThanNoneAndHasRoom) {
  it_.with_path();
  it_.budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
  for (const auto more : {Bytes{0}, 2 * each(), 20 * each()}) {
    it_.budget.dram = 64 * MiB + more;
    const auto found = plan();
    EXPECT_LE(found.dram_peak, it_.budget.dram);
    EXPECT_LE(found.prediction.step_seconds, plan_of(0).prediction.step_seconds);
    EXPECT_FALSE(found.compared_on(Axis::saved_activations).empty());
  }
}

TEST_F(SavedChoice, ADeviceHoldsWhatItsLayersKeep) {
  it_.budget.saved_activations.on_device = true;
  it_.rates.to_device = it_.rates.from_device = 1e10;
  it_.budget.device = DeviceTier{.capacity = 64 * MiB, .weight = 0, .activation = 0, .state = 0};
  const auto none = plan_of(0), all = plan_of(kLayers);
  EXPECT_EQ(all.device_peak, none.device_peak + kLayers * each());
  EXPECT_EQ(all.dram_peak, none.dram_peak);
  EXPECT_EQ(plan().keeping.size(), kLayers);
  it_.budget.device->capacity = none.device_peak + each();
  EXPECT_EQ(plan().keeping.size(), 1U);
  EXPECT_THROW(static_cast<void>(plan_of(kLayers)), Error);
}

TEST_F(SavedChoice, ThePlanSaysWhatIsKeptAndWhy) {
  const auto in_json = [&](const Plan& found) {
    return make_json(summarize(found, it_.description, it_.layout, it_.budget));
  };
  const auto told = in_json(plan());
  EXPECT_EQ(told["saved_activations"]["keep"], kLayers);
  EXPECT_EQ(told["saved_activations"]["blocks"].size(), kLayers);
  EXPECT_EQ(told["saved_activations"]["bytes"], kLayers * each());
  Bytes held = 0;
  for (const auto& part : told["bytes"]) held += part["bytes"].get<Bytes>();
  EXPECT_EQ(held, told["tiers"][0]["planned_peak"]) << "what is kept is a class of its own";
  it_.budget.saved_activations = {.layers = kLayers, .why = "this type shares keys"};
  EXPECT_EQ(in_json(plan())["saved_activations"]["why"], "this type shares keys");
  it_.budget.saved_activations = {};
  EXPECT_FALSE(in_json(plan()).contains("saved_activations"));
}

}  // namespace
}  // namespace spillway::plan
