// Volumes that are made, opened again, or left alone.
#include "spillway/execute/run_storage.h"

#include <gtest/gtest.h>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

TEST(RunStorage, RemovesWhatItHasMadeUnlessTheRunStarts) {
  const Planned planned;
  for (const bool starts : {false, true}) {
    {
      RunStorage storage(planned.run_plan(), planned.volumes());
      Recovery recovery;
      ASSERT_TRUE(storage.open({}, recovery));
      EXPECT_TRUE(std::filesystem::exists(planned.volume()));
      EXPECT_FALSE(recovery.found);
      if (starts) {
        storage.start(recovery);
        storage.started();
      }
    }
    EXPECT_EQ(std::filesystem::exists(planned.volume()), starts);
  }
}

TEST(RunStorage, HasPartsByWhatThePlanKeepsOnPaths) {
  const Planned durable, not_durable({.durability = plan::Durability::none});
  for (const auto* planned : {&durable, &not_durable}) {
    RunStorage storage(planned->run_plan(), planned->volumes(false));
    Recovery recovery;
    ASSERT_TRUE(storage.open({}, recovery));
    EXPECT_EQ(storage.pool(), nullptr);
    const Resources resources(planned->run_plan(), 1, storage.paths());
    storage.start(recovery);
    EXPECT_EQ(storage.run_journal() != nullptr, planned == &durable);
    EXPECT_NE(storage.pool(), nullptr);
    EXPECT_NE(storage.store(), nullptr);
    ASSERT_EQ(storage.paths().size(), 1U);
    EXPECT_GE(storage.paths()[0]->capacity(), planned->plan.volumes[0]);
    storage.stop();
    storage.stop();
  }
}

TEST(RunStorage, AsksForPinnedCheckpointsWhereThereIsARunAlone) {
  const Planned planned;
  int asked = 0;
  const OpenOptions open_options{.reopen = true, .pinned = [&] {
                                   ++asked;
                                   return std::vector<std::filesystem::path>{};
                                 }};
  for (const int expected : {0, 1}) {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, open_options);
    EXPECT_EQ(asked, expected);
    if (expected > 0) break;
    test::fill(run, planned);
    run.commit("");
    run.wait_durable();
  }
}

TEST(RunStorage, DoesNotCountAStepThatIsTooOld) {
  const Planned planned;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    run.set_step(4);
    run.commit("");
    run.wait_durable();
  }
  for (const std::uint64_t least : {4U, 5U}) {
    RunStorage storage(planned.run_plan(), planned.volumes());
    Recovery recovery;
    EXPECT_EQ(storage.open({.reopen = true, .if_found = true, .at_least = least}, recovery), least == 4);
    EXPECT_EQ(recovery.found, least == 4);
  }
}

TEST(RunStorage, LosesNothingThatWasCommittedUnasked) {
  const Planned planned;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    run.commit("");
    run.wait_durable();
  }
  RunStorage storage(planned.run_plan(), planned.volumes());
  Recovery recovery;
  EXPECT_ERROR(static_cast<void>(storage.open({}, recovery)), ErrorCode::bad_input, "which starting anew would lose");
}

}  // namespace
}  // namespace spillway::execute
