// Volumes that are looked into hold what their run left.
#include "spillway/execute/read_only.h"

#include <gtest/gtest.h>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

TEST(ReadOnly, FindsWhatTheRunCommitted) {
  const Planned planned;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    run.set_step(8);
    run.commit("");
    run.wait_durable();
  }
  const ReadOnly opened(planned.run_plan(), planned.volumes(false));
  const auto found = opened.recover(ObjectNames(planned.description, planned.layout));
  EXPECT_TRUE(found.found);
  EXPECT_EQ(found.newest.step, 8U);
  EXPECT_EQ(found.snapshots.size(), planned.layout.chunks().size());
}

TEST(ReadOnly, LeavesVolumesWhateverTheSettingsSay) {
  const Planned planned;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    run.commit("");
    run.wait_durable();
  }
  { const ReadOnly opened(planned.run_plan(), planned.volumes(false)); }
  EXPECT_TRUE(std::filesystem::exists(planned.volume()));
}

TEST(ReadOnly, IsOfARunThatHasBegun) {
  const Planned planned;
  EXPECT_ERROR(ReadOnly(planned.run_plan(), planned.volumes()), ErrorCode::bad_input, "holds nothing of the run");
}

}  // namespace
}  // namespace spillway::execute
