// A run from its start to its end, and the one that goes on from it.
#include "spillway/execute/run.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::fill;
using test::masters;
using test::Planned;
using test::train_step;

TEST(Run, DoesNotStartWhereNothingIsFoundAndOnlyThatWasAskedFor) {
  for (const std::size_t paths : {0U, 1U}) {
    const Planned planned({.placement = {paths == 0 ? 1 : 0, 1, 1, 1},
                           .durability = paths == 0 ? plan::Durability::none : plan::Durability::step,
                           .paths = paths});
    const execute::Run run(planned.run_plan(), planned.volumes(), 1, {.reopen = true, .if_found = true});
    EXPECT_FALSE(run.started());
    EXPECT_FALSE(run.recovery().has_step);
    if (paths > 0) {
      EXPECT_FALSE(std::filesystem::exists(planned.volume())) << "nothing was changed";
    }
  }
}

TEST(Run, RefusesACheckpointWhereNothingLiesOnAPath) {
  const Planned planned({.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0});
  EXPECT_ERROR(execute::Run(planned.run_plan(), planned.volumes(), 1, {.reopen = true, .checkpoint = "/somewhere"}),
               ErrorCode::bad_input, "this plan keeps nothing there");
}

TEST(Run, RefusesACheckpointOfOtherPaths) {
  const Planned planned;
  EXPECT_ERROR(execute::Run(planned.run_plan(), planned.volumes(), 1, {.reopen = true, .checkpoint = "/somewhere"}),
               ErrorCode::bad_input, "hold nothing of this run");
}

TEST(Run, GoesOnFromWhatItCommitted) {
  const Planned planned;
  std::vector<float> expected;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    EXPECT_FALSE(run.recovery().has_step);
    fill(run, planned);
    for (int step = 0; step < 3; ++step) {
      train_step(run, planned);
      run.commit(text("after ", step + 1));
    }
    expected = masters(run, planned);
    run.wait_durable();
  }
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {.reopen = true});
  EXPECT_TRUE(run.recovery().has_step);
  EXPECT_EQ(run.recovery().step, 3U);
  EXPECT_EQ(run.recovery().updates, 3);
  EXPECT_EQ(run.recovery().payload, "after 3");
  EXPECT_GT(run.recovery().seconds, 0);
  EXPECT_EQ(run.step().protocol().state(), StepState::publish);
  EXPECT_EQ(masters(run, planned), expected);
}

TEST(Run, CommitsNothingWhereNothingIsDurable) {
  const Planned planned({.durability = plan::Durability::none});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  fill(run, planned);
  train_step(run, planned);
  run.commit("one"), run.commit("two");
  EXPECT_EQ(run.step().protocol().state(), StepState::decide);
  EXPECT_ERROR(run.save_manifest(planned.where()), ErrorCode::bad_input, "checkpoints stand alone");
}

TEST(Run, LoadsNothingOnceADurableRunHasBegun) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  fill(run, planned);
  run.set_step(5);
  run.commit("");
  EXPECT_ERROR(fill(run, planned), ErrorCode::bad_input, "has begun");
  EXPECT_ERROR(run.set_step(6), ErrorCode::bad_input, "has begun");
  train_step(run, planned);
  EXPECT_EQ(run.step().protocol().position().step, 6U);
}

TEST(Run, ChangesWeightsBetweenStepsWhereNothingIsDurable) {
  const Planned planned({.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  fill(run, planned);
  const auto before = masters(run, planned);
  train_step(run, planned);
  EXPECT_NE(masters(run, planned), before);
  fill(run, planned);
  EXPECT_EQ(masters(run, planned), before);
}

TEST(Run, SavesAndReleasesAManifest) {
  const Planned planned;
  std::vector<float> expected;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    fill(run, planned);
    train_step(run, planned);
    run.save_manifest(planned.where());
    expected = masters(run, planned);
    train_step(run, planned);
    run.commit("");
    run.flush();
  }
  const auto pinned = [&] { return std::vector{planned.where()}; };
  execute::Run run(planned.run_plan(), planned.volumes(), 1,
                   {.reopen = true, .checkpoint = planned.where(), .pinned = pinned});
  EXPECT_EQ(run.recovery().step, 1U);
  EXPECT_EQ(masters(run, planned), expected);
}

TEST(Run, KeepsItsVolumesUnlessTheyAreGivenUp) {
  for (const bool give_up : {false, true}) {
    const Planned planned;
    {
      execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
      if (give_up) run.give_up_volumes();
    }
    EXPECT_EQ(std::filesystem::exists(planned.volume()), !give_up);
  }
}

}  // namespace
}  // namespace spillway::execute
