// When tasks run: by the facts of an instance and of their chunks, and what complete_conditions() says of a schedule.
#include "spillway/plan/condition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "spillway/plan/planner.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

/// The same of every chunk but the first, of which nothing is true.
struct Chunks {
  bool refit = false, due = false, early = false, asked = false, before = false, waits = false;
  [[nodiscard]] bool has_refit(Index c) const { return refit && c > 0; }
  [[nodiscard]] bool is_refit_due(Index c) const { return due && c > 0; }
  [[nodiscard]] bool keeps_early_update(Index c) const { return early && c > 0; }
  [[nodiscard]] bool is_asked(Index c) const { return asked && c > 0; }
  [[nodiscard]] bool was_asked(Index c) const { return before && c > 0; }
  [[nodiscard]] bool is_due(Index c) const { return waits && c > 0; }
};

bool runs(const Condition& when, const StepFacts& step, const Chunks& chunks = {}, Index first = 1, Index end = 2) {
  return when.runs(step, chunks, first, end);
}

TEST(Conditions, UpdateRunsInItsTurnWhileUpdatesArePending) {
  const Condition when{.phase = Phase::update, .every = 3, .turn = 2};
  EXPECT_TRUE(runs(when, {.update = true, .updates = 5}));
  EXPECT_FALSE(runs(when, {.update = true, .updates = 6}));
  EXPECT_FALSE(runs(when, {.update = false, .updates = 5}));
  EXPECT_TRUE(when.has_turn(8));
  EXPECT_FALSE(when.has_turn(9));
}

TEST(Conditions, WeightsComeForPassesOrForTheUpdateThatNeedsThem) {
  const StepFacts update_alone{.update = true, .passes = false, .backward = false};
  EXPECT_TRUE(runs({.phase = Phase::forward}, {}));
  EXPECT_FALSE(runs({.phase = Phase::forward}, update_alone));
  EXPECT_TRUE(runs({.phase = Phase::forward, .feeds_update = true}, update_alone));
  EXPECT_FALSE(runs({.phase = Phase::forward, .feeds_update = true}, {.passes = false}));
  EXPECT_FALSE(runs({.phase = Phase::head_loss}, update_alone));
}

TEST(Conditions, UpdateThatWaitsRunsWhenItIsDue) {
  const Condition update{.phase = Phase::update, .only = OnlyIf::due};
  const Condition read{.phase = Phase::forward, .only = OnlyIf::due_or_asked};
  const Condition gradient{.phase = Phase::update, .only = OnlyIf::asked_before};
  const StepFacts alone{.passes = false, .backward = false, .catches_up = true}, pending{.update = true};
  EXPECT_TRUE(runs(update, alone, {.waits = true}));
  EXPECT_TRUE(runs(read, alone, {.waits = true}));
  EXPECT_FALSE(runs(update, alone, {.asked = true}));
  EXPECT_TRUE(runs(read, alone, {.asked = true}));
  EXPECT_FALSE(runs(update, {}, {.waits = true}));
  EXPECT_TRUE(runs(gradient, pending, {.before = true}));
  EXPECT_FALSE(runs(gradient, pending, {.asked = true, .waits = true}));
}

TEST(Conditions, TrialLeavesOutGradientsOnPathsAlone) {
  const StepFacts trial{.trial = true};
  EXPECT_FALSE(runs({.phase = Phase::backward, .stores_gradient = true}, trial));
  EXPECT_TRUE(runs({.phase = Phase::backward, .stores_gradient = true}, {}));
  EXPECT_TRUE(runs({.phase = Phase::backward}, trial));
  EXPECT_FALSE(runs({.phase = Phase::backward}, {.backward = false}));
  EXPECT_FALSE(runs({.phase = Phase::ahead}, {.backward = false}));
  EXPECT_EQ(runs({.phase = Phase::early}, {.early = true}), true);
  EXPECT_EQ(runs({.phase = Phase::early}, {.early = false}), false);
}

TEST(Conditions, KeptCopyIsSentAgainWhenHostWeightsChanged) {
  const Condition changed{.only = OnlyIf::changed_weights, .feeds_update = true};
  const Condition stored{.only = OnlyIf::stored_weights, .feeds_update = true};
  const StepFacts updated{.has_changed_weights = true, .has_stored_weights = false};
  EXPECT_TRUE(runs(changed, updated));
  EXPECT_FALSE(runs(stored, updated));
  EXPECT_TRUE(runs(stored, {.has_stored_weights = true}));
  EXPECT_FALSE(runs(changed, {.has_changed_weights = false, .has_stored_weights = false}));
  // An update without passes takes the weights from the copy, whatever has changed.
  EXPECT_TRUE(runs(stored, {.update = true, .passes = false, .has_stored_weights = false}));
}

TEST(Conditions, RefitsAndEarlyUpdatesAreAskedOfChunks) {
  EXPECT_TRUE(runs({.only = OnlyIf::left_refit}, {}, {.refit = true}, 0, 2));  // one chunk of several
  EXPECT_FALSE(runs({.only = OnlyIf::left_refit}, {}, {.refit = true}, 0, 1));
  EXPECT_TRUE(runs({.only = OnlyIf::due_refit}, {}, {.due = true}));
  EXPECT_FALSE(runs({.only = OnlyIf::due_refit}, {}, {.refit = true}));
  const Condition update{.phase = Phase::update, .only = OnlyIf::no_early_update};
  EXPECT_FALSE(runs(update, {.update = true}, {.early = true}));
  EXPECT_TRUE(runs(update, {.update = true}, {.early = false}));
  EXPECT_FALSE(runs(update, {.update = false}, {.early = false}));
  EXPECT_TRUE(runs({.only = OnlyIf::asked}, {}, {.asked = true}));
  EXPECT_FALSE(runs({.only = OnlyIf::asked}, {}, {.asked = false}));
}

TEST(Conditions, UploadsOfAScheduleKnowWhoUpdatesTheirWeights) {
  const auto description = test::describe({.layers = 4, .tied = false, .tokens = 64, .frozen = "up|down|embed|head"});
  const auto layout = description.layout();
  const Budget budget{.dram = 1 * GiB, .device = DeviceTier{.capacity = 1 * GiB, .weight = 1, .state = 0}};
  const auto plan = make_plan(description, layout, budget, {.cores = 2, .update = 1e9, .to_device = 1e9});
  std::set<OnlyIf> frozen, trained;
  for (const auto& task : plan.schedule.tasks) {
    if (!task.moves(Lane::to_device, ObjectKind::weight)) continue;
    const bool learns = plan.schedule.update_task[task.what.index] != kNone;
    (learns ? trained : frozen).insert(task.when.only);
    EXPECT_EQ(task.when.is_free, !learns);
  }
  EXPECT_EQ(frozen, std::set{OnlyIf::stored_weights});
  EXPECT_EQ(trained, std::set{OnlyIf::changed_weights});
}

}  // namespace
}  // namespace spillway::plan
