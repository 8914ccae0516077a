#include "spillway/plan/saving.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/plan/planner.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

class SavingTest : public ::testing::Test {
 protected:
  [[nodiscard]] SavingNeed need(const Saving& saving, bool manifests = false) const {
    return saving_need(description_, layout_, saving, manifests);
  }
  [[nodiscard]] Plan planned(Budget budget) const {
    budget.dram = 1 << 30;
    return make_plan(description_, layout_, budget, {});
  }
  /// Everything on one path that shares output_dir's file system.
  [[nodiscard]] static Budget shared(Bytes free, Bytes capacity, const Saving& saving) {
    Budget out;
    out.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
    out.durability = Durability::none;
    out.paths.push_back({.capacity = capacity});
    out.saving = saving;
    out.file_systems.push_back({.name = "/mnt", .free = free, .paths = {0}, .output = true});
    return out;
  }
  [[nodiscard]] std::string refusal(const Budget& budget) const {
    try {
      static_cast<void>(planned(budget));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      return error.what();
    }
    return {};
  }

  const Description description_ = test::describe({.layers = 4, .hidden = 256, .ffn = 1024, .chunk_elements = 1 << 18});
  const state::Layout layout_ = description_.layout();
};

TEST_F(SavingTest, ACheckpointHoldsWeightsAndState) {
  const auto parameters = layout_.parameters();
  const auto whole = need({.saves = 1});
  EXPECT_GE(whole.weights, 2 * parameters);
  EXPECT_LE(whole.weights, 2 * parameters + parameters / 8);
  EXPECT_GE(whole.checkpoint, 12 * parameters);
  EXPECT_LE(whole.checkpoint, 13 * parameters);
  EXPECT_EQ(need({.saves = 1, .model_only = true}).checkpoint, whole.weights);
  EXPECT_LT(need({.saves = 1}, true).checkpoint, whole.weights + parameters / 8);
  const auto adapters = need({.saves = 1, .adapters = true}).checkpoint;
  EXPECT_GE(adapters, (4 + 10 + 2) * parameters) << "fp32 adapters, their state, and their compute weights";
}

TEST_F(SavingTest, CountsWhatExistsAtOnce) {
  const auto one = need({.saves = 1});
  EXPECT_EQ(need({.saves = 5}).at_once, 5U);
  EXPECT_GE(need({.saves = 5}).bytes, 5 * one.checkpoint);
  const auto limited = need({.saves = 5, .limit = 2});
  EXPECT_EQ(limited.at_once, 3U) << "two that are kept and one that is being written";
  EXPECT_GE(limited.bytes, 3 * one.checkpoint);
  EXPECT_LT(limited.bytes, 4 * one.checkpoint);
}

TEST_F(SavingTest, WhatIsThereGoesWhenNewOnesCome) {
  const auto one = need({.saves = 1});
  const Saving resumed{.saves = 3, .limit = 1, .there = {one.checkpoint}};
  EXPECT_EQ(need(resumed).at_once, 2U);
  EXPECT_LT(need(resumed).bytes, 2 * one.checkpoint);
  EXPECT_GE(need({.saves = 3, .limit = 1, .there = {0}}).bytes, one.checkpoint) << "one that lies elsewhere";
  EXPECT_LT(need({.saves = 1, .freed = one.checkpoint}).bytes, one.checkpoint / 8);
}

TEST_F(SavingTest, CheckpointsThatStandAloneHoldTheStateBesideManifests) {
  const auto manifest = need({.saves = 1}, true), alone = need({.saves = 1}, false);
  const auto mixed = need({.saves = 4, .whole = {1, 3}}, true);
  EXPECT_EQ(mixed.checkpoint, alone.checkpoint);
  EXPECT_GE(mixed.bytes, 2 * manifest.checkpoint + 2 * alone.checkpoint);
  EXPECT_LT(mixed.bytes, 2 * manifest.checkpoint + 3 * alone.checkpoint);
  EXPECT_EQ(need({.saves = 4, .whole = {1, 3}}).bytes, need({.saves = 4}).bytes) << "all stand alone";
}

TEST_F(SavingTest, TheNewestThatStandsAloneStaysBesideTheNewestCheckpoints) {
  const auto manifest = need({.saves = 1}, true), alone = need({.saves = 1}, false);
  const auto first = need({.saves = 6, .limit = 2, .whole = {0}}, true);
  EXPECT_EQ(first.at_once, 4U) << "two that are kept, the one that stands alone, and one that is being written";
  EXPECT_GE(first.bytes, alone.checkpoint + 3 * manifest.checkpoint);
  const auto both = need({.saves = 6, .limit = 2, .whole = {0, 5}}, true);
  EXPECT_GE(both.bytes, 2 * alone.checkpoint + 2 * manifest.checkpoint) << "until the newer one is there";
  EXPECT_LT(need({.saves = 6, .limit = 2, .whole = {4, 5}}, true).bytes, 3 * alone.checkpoint);
  const Saving resumed{.saves = 2, .limit = 1, .there = {alone.checkpoint, manifest.checkpoint}, .whole = {0, 3}};
  EXPECT_GE(need(resumed, true).bytes, alone.checkpoint) << "the one that is there stays until the next is";
}

TEST_F(SavingTest, TheFinalModelIsACopyWhereThereAreNoLinks) {
  const auto linked = need({.saves = 1}), copied = need({.saves = 1, .copies = true});
  EXPECT_GE(copied.bytes, linked.bytes + copied.weights);
  EXPECT_GE(need({.copies = true}).bytes, copied.weights);
}

TEST_F(SavingTest, VolumesLeaveWhatSavingTakes) {
  const Saving saving{.saves = 2};
  const auto bytes = need(saving).bytes;
  const auto alone = planned(shared(1 << 30, 1 << 30, {}));
  const auto volumes = alone.volumes[0] + alone.path_overhead;
  const auto plan = planned(shared(volumes + bytes + 2 * MiB, volumes + bytes, saving));
  ASSERT_TRUE(plan.saving);
  EXPECT_EQ(plan.volumes, alone.volumes);
  EXPECT_EQ(plan.saving->bytes, bytes);
  EXPECT_EQ(plan.saving->at_once, 2U);
}

TEST_F(SavingTest, RefusesWhatDoesNotFitBesideTheVolumes) {
  const Saving saving{.saves = 2};
  const auto bytes = need(saving).bytes;
  const auto alone = planned(shared(1 << 30, 1 << 30, {}));
  const auto volumes = alone.volumes[0] + alone.path_overhead;
  const auto words = refusal(shared(volumes + bytes / 2, volumes + bytes, saving));
  for (const auto* part : {"/mnt", "path:0", "2 checkpoints", "--save_total_limit 1", "--save_steps", "output_dir"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in: " << words;
  }
}

TEST_F(SavingTest, RefusesWithoutAnyPath) {
  Budget budget;
  budget.saving = Saving{.saves = 3, .limit = 1};
  budget.file_systems.push_back({.name = "/home", .free = 1 * MiB, .paths = {}, .output = true});
  const auto words = refusal(budget);
  for (const auto* part : {"/home", "2 checkpoints", "smaller --save_total_limit", "--save_only_model"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in: " << words;
  }
}

TEST_F(SavingTest, RefusesWithoutTheAdviceThatWholeCheckpointsForbid) {
  Budget budget;
  budget.saving = Saving{.saves = 3, .limit = 1, .whole = {1}};
  budget.file_systems.push_back({.name = "/home", .free = 1 * MiB, .paths = {}, .output = true});
  const auto words = refusal(budget);
  EXPECT_NE(words.find("--save_whole_steps"), std::string::npos) << words;
  EXPECT_EQ(words.find("--save_only_model"), std::string::npos) << words;
  auto small = shared(1 << 30, 8 * MiB, *budget.saving);
  small.durability = Durability::step;
  small.checkpoints = 2;
  EXPECT_EQ(refusal(small).find("--save_only_model"), std::string::npos) << refusal(small);
  small.saving->whole.clear();
  EXPECT_NE(refusal(small).find("none with --save_only_model"), std::string::npos) << refusal(small);
}

TEST_F(SavingTest, RefusesVolumesThatTheirFileSystemCannotHold) {
  auto budget = shared(1 * MiB, 1 << 30, {});
  budget.saving.reset();
  budget.file_systems[0].output = false;
  EXPECT_NE(refusal(budget).find("the volumes of path:0 need"), std::string::npos);
}

}  // namespace
}  // namespace spillway::plan
