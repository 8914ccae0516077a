// Volumes that are made, opened again, or left alone.
#include "spillway/execute/run_storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "spillway/execute/read_only.h"
#include "spillway/memory/arena.h"
#include "spillway/optim/step.h"
#include "spillway/sys/faulty_ring.h"
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
      EXPECT_FALSE(recovery.has_step);
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

void make_durable(const Planned& planned, std::uint64_t step) {
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  run.set_step(step);
  run.commit("");
  run.wait_durable();
}

TEST(RunStorage, DoesNotCountAStepThatIsTooOld) {
  const Planned planned;
  make_durable(planned, 4);
  for (const std::uint64_t least : {4U, 5U}) {
    RunStorage storage(planned.run_plan(), planned.volumes());
    Recovery recovery;
    EXPECT_EQ(storage.open({.reopen = true, .if_found = true, .at_least = least}, recovery), least == 4);
    EXPECT_EQ(recovery.has_step, least == 4);
  }
}

/// Its places would otherwise be missing for good, and a write wait for one until the end of days.
TEST(RunStorage, AStepThatDoesNotCountHoldsNoPlaces) {
  const Planned planned;
  make_durable(planned, 4);
  RunStorage storage(planned.run_plan(), planned.volumes());
  Recovery recovery;
  ASSERT_TRUE(storage.open({.reopen = true, .at_least = 5}, recovery));
  ASSERT_FALSE(recovery.has_step);
  storage.start(recovery);
  for (const auto& path : storage.pool()->paths()) {
    EXPECT_EQ(path.free, path.capacity / storage::kExtentAlignment * storage::kExtentAlignment);
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

/// The second of two shards, whose first has whatever the test says, and at first as much as this one.
class ShardStorage : public ::testing::Test {
 protected:
  struct Votes : journal::VotePort {
    void vote(std::int64_t step, Done done) override {
      taken.push_back(step);
      done(std::min(step, other), nullptr);
    }
    void cancel() noexcept override {}
    std::vector<std::int64_t> taken;
    std::int64_t other = std::numeric_limits<std::int64_t>::max();
  };
  static plan::test::Shape two_shards() {
    auto out = test::layers();
    out.virtual_ranks = 2;
    return out;
  }
  [[nodiscard]] VolumeSettings volumes() {
    auto out = planned_.volumes();
    out.votes = &votes_;
    return out;
  }
  /// The state of step 0, durable.
  void write_step(RunStorage& storage) {
    const memory::Arena memory(4 * MiB);
    const auto rule = planned_.description.rule();
    for (const auto c : planned_.ownership.mine()) {
      const auto& chunk = planned_.layout.chunks()[c];
      storage.store()->write(plan::ObjectKind::weight, c, memory.span().first(weight_bytes(rule, chunk)), 0);
      storage.store()->write(plan::ObjectKind::state, c, memory.span().first(state_bytes(rule, chunk)), 0);
      storage.store()->publish(c, 0);
    }
    std::vector<std::byte> update = optim::encode(*planned_.description.optimizer, {});
    storage.run_journal()->commit({.step = 0, .update = update});
    storage.run_journal()->wait_durable(0);
  }
  /// What is left of a run of the line 7.
  void begin() {
    RunStorage storage(planned_.run_plan(), volumes());
    Recovery recovery;
    ASSERT_TRUE(storage.open({.line = 7}, recovery));
    storage.start(recovery);
    storage.started();
    write_step(storage);
  }
  [[nodiscard]] Recovery reopened(const OpenOptions& open_options) {
    RunStorage storage(planned_.run_plan(), volumes());
    Recovery out;
    EXPECT_TRUE(storage.open(open_options, out));
    return out;
  }

  Planned planned_{{.shape = two_shards(), .world = {2, 1}}};
  Votes votes_;
};

TEST_F(ShardStorage, VotesWhenItIsOpenedAndWithEachStep) {
  EXPECT_EQ(newest_step(planned_.run_plan(), volumes()).step, journal::kNoStep);
  begin();
  EXPECT_EQ(votes_.taken, (std::vector<std::int64_t>{journal::kNoStep, 0}));
  EXPECT_TRUE(std::filesystem::exists(planned_.where() / "0" / "spillway.shard-1-of-2.volume"));
  const auto newest = newest_step(planned_.run_plan(), volumes());
  EXPECT_EQ(newest.step, 0);
  EXPECT_EQ(newest.line, 7U);
}

/// What a killed process has written can be read, and lost in a cut that comes after.
TEST_F(ShardStorage, TellsTheOthersOfWhatIsFlushedOnly) {
  begin();
  const auto faults = std::make_shared<sys::Faults>();
  auto failing = volumes();
  failing.ring = sys::faulty(sys::make_ring, faults);
  faults->fail(sys::Operation::sync, 0, EIO);
  EXPECT_ERROR(static_cast<void>(newest_step(planned_.run_plan(), failing)), ErrorCode::io, "flushing");
}

TEST_F(ShardStorage, GoesOnFromTheStepThatAllShardsHave) {
  begin();
  const auto found = reopened({.reopen = true, .at_most = 0, .line = 7});
  EXPECT_TRUE(found.has_step && !found.cut_off);
  const auto anew = reopened({.reopen = true, .at_most = journal::kNoStep, .line = 7});
  EXPECT_FALSE(anew.has_step);
  EXPECT_EQ(anew.cut_off, 0U);
}

TEST_F(ShardStorage, StopsWhereAnotherShardHasLess) {
  votes_.other = journal::kNoStep;
  RunStorage storage(planned_.run_plan(), volumes());
  Recovery recovery;
  ASSERT_TRUE(storage.open({.line = 7}, recovery));
  storage.start(recovery);
  EXPECT_ERROR(write_step(storage), ErrorCode::io, "another shard has only step -1");
}

TEST(RunStorage, OfSeveralProcessesNamesItsLine) {
  const Planned planned;
  RunStorage storage(planned.run_plan(), planned.volumes());
  Recovery recovery;
  EXPECT_ERROR(static_cast<void>(storage.open({.line = 7}, recovery)), ErrorCode::bad_input, "a world of 1 is opened");
}

TEST_F(ShardStorage, RefusesAShardOfAnotherLine) {
  begin();
  EXPECT_ERROR(static_cast<void>(reopened({.reopen = true, .line = 8})), ErrorCode::bad_input,
               "shard 1 of 2 holds step 0 of the line 7 of this run, which goes on in the line 8");
  EXPECT_ERROR(static_cast<void>(reopened({.reopen = true, .at_most = journal::kNoStep, .line = 8})),
               ErrorCode::bad_input, "of the line 7");
}

}  // namespace
}  // namespace spillway::execute
