// Chunks of an earlier process: taken where their snapshots are up to date, updated again where they are not.
#include "spillway/execute/restore.h"

#include <gtest/gtest.h>

#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::fill;
using test::masters;
using test::Planned;
using test::train_step;

/// By where chunks live: on the path, in memory, on a device.
class RestoreTest : public ::testing::TestWithParam<int> {
 protected:
  static test::PlanOptions options() {
    test::PlanOptions out;
    if (GetParam() > 0) out.placement = {1, 1, 1, 1};
    out.device = GetParam() == 2;
    return out;
  }
};

TEST_P(RestoreTest, GivesTheBitsOfTheRunThatEnded) {
  const Planned planned(options());
  std::vector<float> expected;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    fill(run, planned);
    run.commit("");
    for (int step = 0; step < 3; ++step) {
      train_step(run, planned);
      run.commit("");
    }
    run.wait_durable();  // the last updates have not begun
    execute::Run other(planned.run_plan(), Planned().volumes(), 1, {});
    fill(other, planned);
    for (int step = 0; step < 3; ++step) train_step(other, planned);
    expected = masters(other, planned);
  }
  execute::Run run(planned.run_plan(), planned.volumes(), 2, {.reopen = true});
  const auto& recovery = run.recovery();
  EXPECT_EQ(recovery.step, 3U);
  EXPECT_EQ(recovery.chunks, planned.layout.chunks().size());
  EXPECT_EQ(recovery.replayed, recovery.chunks) << "the last update of each was not done";
  EXPECT_GE(recovery.replayed_steps, 1U);
  EXPECT_GT(recovery.phases.replay, 0);
  EXPECT_EQ(masters(run, planned), expected);
}

TEST_P(RestoreTest, TakesSnapshotsAsTheyAre) {
  const Planned planned(options());
  std::vector<float> expected;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    fill(run, planned);
    run.commit("");
    run.flush();
    expected = masters(run, planned);
  }
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {.reopen = true});
  EXPECT_EQ(run.recovery().replayed, 0U);
  EXPECT_EQ(run.recovery().phases.replay, 0);
  EXPECT_EQ(masters(run, planned), expected);
}

INSTANTIATE_TEST_SUITE_P(Tiers, RestoreTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace spillway::execute
