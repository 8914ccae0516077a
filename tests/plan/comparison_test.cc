// Plans are made once each, and the best one is the fastest, but for what bytes and wear are worth.
#include "spillway/plan/comparison.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

Decisions blocks(std::size_t resident, SavedLayers layers = {}) {
  return {.blocks = {.device_resident = resident}, .layers = layers};
}

struct Cost {
  double seconds = 0;
  Bytes link = 0;
  bool ample = true;
};

class ComparisonTest : public ::testing::Test {
 protected:
  /// Numbers of resident blocks that fit, and what they come to.
  std::map<std::size_t, Cost> costs_;
  std::size_t made_ = 0;
  bool has_copies_ = false;  ///< on the device, of matrices that take changes

  Plan make(const Decisions& decisions) {
    ++made_;
    const auto it = costs_.find(decisions.blocks.device_resident);
    if (it == costs_.end()) throw NoRoomOnDevice(text("no room for ", decisions.blocks.device_resident));
    Plan out;
    out.decisions = decisions;
    out.prediction.step_seconds = it->second.seconds;
    out.to_device_per_step = it->second.link;
    out.ample = it->second.ample;
    out.spilling.resize(decisions.layers.spill);
    if (has_copies_ && decisions.applies_changes) out.schedule.changes.push_back({.weight = {.buffer = 0}});
    return out;
  }
  Comparison comparison_{[this](const Decisions& of) { return make(of); }, blocks(0)};
};

TEST_F(ComparisonTest, EachPlanIsMadeOnceAndListedUnderEachAxisOnce) {
  costs_ = {{0, {1.0}}, {4, {0.5}}};
  EXPECT_EQ(comparison_.add(blocks(4)), 0.5);
  EXPECT_EQ(comparison_.add(Axis::device_blocks, blocks(4)), 0.5);
  EXPECT_EQ(comparison_.add(Axis::device_blocks, blocks(4)), 0.5);
  EXPECT_EQ(comparison_.add(Axis::device_blocks, blocks(8)), std::nullopt);
  EXPECT_EQ(comparison_.add(Axis::device_blocks, blocks(0)), 1.0);
  EXPECT_EQ(made_, 3U);
  const auto plan = std::move(comparison_).take();
  ASSERT_EQ(plan.compared.size(), 3U);
  EXPECT_EQ(plan.compared[0].value, "4 blocks resident");
  EXPECT_TRUE(plan.compared[0].chosen);
  EXPECT_FALSE(plan.compared[1].fits);
  EXPECT_FALSE(plan.compared[2].chosen);
  EXPECT_TRUE(plan.ample) << "the device alone had no room";
}

TEST_F(ComparisonTest, OfStepsWithinAPercentTheOneThatMovesFewestBytesIsBest) {
  costs_ = {{1, {1.0, 100}}, {2, {1.009, 10}}, {3, {1.02, 1}}};
  for (const std::size_t resident : {3U, 1U, 2U}) comparison_.add(Axis::device_blocks, blocks(resident));
  EXPECT_EQ(comparison_.fastest_seconds(), 1.0);
  EXPECT_EQ(comparison_.best().decisions, blocks(2));
  EXPECT_EQ(comparison_.find(blocks(3)), nullptr) << "too slow to be kept";
}

TEST_F(ComparisonTest, LayersAreChosenByTimeAlone) {
  costs_ = {{1, {1.0, 100}}, {2, {1.005, 10}}};
  comparison_.add(Axis::saved_activations, blocks(2));
  comparison_.add(Axis::saved_activations, blocks(1, {.keep = 3}));
  EXPECT_EQ(comparison_.best().decisions.layers.keep, 3U);
}

TEST_F(ComparisonTest, SpillingToDrivesHasToSaveTwoPercentAndToMemoryNothing) {
  costs_ = {{1, {1.0}}, {2, {0.985}}};
  const TierId host{TierKind::host, 1};
  comparison_.add(Axis::saved_activations, blocks(1));
  comparison_.add(Axis::saved_activations, blocks(2, {.spill = 4}));
  EXPECT_EQ(comparison_.best().decisions, blocks(1));
  comparison_.add(Axis::saved_activations, blocks(2, {.spill = 4, .home = host}));
  EXPECT_EQ(comparison_.best().decisions.layers.home, host);
}

TEST_F(ComparisonTest, ValuesSayWhatElseDiffersFromTheChosenPlan) {
  costs_ = {{1, {1.0}}, {2, {0.5}}};
  comparison_.add(Axis::device_blocks, blocks(1));
  comparison_.add(Axis::saved_activations, blocks(2, {.keep = 1}));
  const auto compared = std::move(comparison_).take().compared_on(Axis::device_blocks);
  ASSERT_EQ(compared.size(), 2U);
  EXPECT_EQ(compared[0].value, "1 block resident (0 layers kept)");
  EXPECT_EQ(compared[1].value, "2 blocks resident");
  EXPECT_TRUE(compared[1].chosen);
}

TEST_F(ComparisonTest, ChangesAreListedWhereADeviceHasCopiesThatTakeThem) {
  costs_ = {{1, {1.0}}};
  auto taking = blocks(1);
  taking.applies_changes = true;
  for (const bool has_copies : {false, true}) {
    has_copies_ = has_copies;
    Comparison comparison{[this](const Decisions& of) { return make(of); }, blocks(1)};
    comparison.add(Axis::device_blocks, blocks(1));
    for (const auto& each : {blocks(1), taking}) comparison.add(Axis::device_changes, each);
    const auto plan = std::move(comparison).take();
    EXPECT_EQ(plan.compared_on(Axis::device_changes).size(), has_copies ? 2U : 0U);
    EXPECT_EQ(plan.compared_on(Axis::device_blocks).size(), 1U);
  }
}

TEST_F(ComparisonTest, WhereNothingFitsTheRefusalIsThatOfTheStart) {
  comparison_.add(Axis::device_blocks, blocks(3));
  auto own = blocks(5);
  own.own_weights = true;
  comparison_.add(Axis::process_weights, own);
  EXPECT_FALSE(comparison_.any());
  try {
    comparison_.refuse();
    FAIL();
  } catch (const NoRoomOnDevice& error) {
    EXPECT_STREQ(error.what(), "no room for 3");
  }
}

TEST_F(ComparisonTest, WantOfHostMemoryIsRemembered) {
  costs_ = {{1, {1.0}}, {2, {2.0, 0, false}}};
  comparison_.add(blocks(1));
  comparison_.add(blocks(2));
  EXPECT_FALSE(std::move(comparison_).take().ample);
}

}  // namespace
}  // namespace spillway::plan
