#include "spillway/journal/journal_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

/// Takes the actions of a state one round at a time, and ends those that a drive would do when it is told to.
class JournalStateTest : public ::testing::Test {
 protected:
  using Lines = std::vector<std::string>;

  void make(std::uint32_t paths, std::uint32_t objects) {
    JournalSpec spec{.run = "run", .paths = paths, .chunks = std::vector<SnapshotSpec>(objects)};
    for (std::uint32_t c = 0; c < objects; ++c) spec.gradients.push_back({1, c, 1});
    state_.emplace(spec);
  }
  /// Opens a journal in which step 0 is durable.
  void begin(std::uint32_t paths = 1, std::uint32_t objects = 1) {
    make(paths, objects);
    state_->open_fresh({});
    end_all();
    for (std::uint32_t c = 0; c < objects; ++c) state_->snapshot_written(c, 0, at(c));
    state_->commit({.step = 0});
    end_all();
    ASSERT_EQ(state_->durable(), 0U);
    told_.clear();
  }
  static std::vector<Piece> at(std::uint32_t place) { return {{{0, place}, 4096, 0, place}}; }

  /// What the state asks for now, in order.
  Lines round() {
    Lines out;
    for (; !state_->actions.empty(); state_->actions.pop_front()) {
      Action& action = state_->actions.front();
      out.push_back(name(action));
      if (action.kind == Action::Kind::released) state_->recycle(action.version);
      if (action.kind == Action::Kind::write || action.kind == Action::Kind::sync) under_way_.push_back(action);
    }
    told_.insert(told_.end(), out.begin(), out.end());
    return out;
  }
  /// Ends everything that is under way with an error, or well.
  void end(const std::exception_ptr& error = nullptr) {
    for (const Action& action : std::exchange(under_way_, {})) {
      if (action.kind == Action::Kind::sync) {
        state_->sync_ended(action.path, error);
      } else {
        state_->write_ended(action.task, action.copy, action.path, error);
      }
    }
  }
  void end_all() {
    while (!round().empty()) end();
  }
  static std::string name(const Action& action) {
    switch (action.kind) {
      case Action::Kind::write:
        return text(action.task != nullptr ? "record" : "commit", " on path ", action.path);
      case Action::Kind::sync:
        return text("sync ", action.path);
      case Action::Kind::vote:
        return text("vote ", action.vote);
      case Action::Kind::opened:
        return "opened";
      case Action::Kind::durable:
        return text("durable ", action.step);
      case Action::Kind::released:
        return text("released ", action.version->pieces.at(0).place.piece);
      case Action::Kind::checkpoint:
        return action.error ? "no checkpoint" : "checkpoint";
      case Action::Kind::path_failed:
        return text("path ", action.path, " failed");
      case Action::Kind::failed:
        return "failed";
    }
    return "?";
  }
  static std::exception_ptr fault() { return std::make_exception_ptr(Error(ErrorCode::io, "a fault")); }

  std::optional<JournalState> state_;
  std::vector<Action> under_way_;
  Lines told_;
};

/// One of two shards.
class ShardStateTest : public JournalStateTest {
 protected:
  void make_shard() {
    JournalSpec spec{.run = "run", .paths = 1, .chunks = {{}, {.elsewhere = true}}, .gradients = {{}, {1, 1, 1}}};
    spec.rank = 1;
    spec.world = 2;
    spec.line = 77;
    state_.emplace(spec);
  }
  /// Opens a shard, in which step 0 is durable.
  void begin_shard() {
    make_shard();
    state_->open_fresh({});
    end_all();
    state_->voted(kNoStep, nullptr);
    end_all();
    state_->snapshot_written(0, 0, at(0));
    state_->commit({.step = 0});
    end_all();
    state_->voted(0, nullptr);
    end_all();
    told_.clear();
  }
  void commit_one() {
    const std::uint32_t used = 0;
    state_->gradient_written(0, 1, at(1));
    state_->commit({.step = 1, .gradients = {&used, 1}});
    end_all();
  }
  [[nodiscard]] std::string last() const { return told_.empty() ? "" : told_.back(); }
};

TEST_F(ShardStateTest, ItIsOpenWhenAllShardsAre) {
  make_shard();
  state_->open_fresh({});
  end_all();
  EXPECT_EQ(last(), "vote -1") << "nothing is durable";
  state_->voted(kNoStep, nullptr);
  end_all();
  EXPECT_EQ(last(), "opened");
  EXPECT_ERROR(state_->snapshot_written(1, 0, at(0)), ErrorCode::internal, "chunk 1 was written, which another shard");
}

TEST_F(ShardStateTest, AStepIsDurableWhenAllShardsHaveIt) {
  begin_shard();
  EXPECT_EQ(state_->durable(), 0U);
  commit_one();
  EXPECT_EQ(last(), "vote 1") << "after the flush";
  EXPECT_EQ(state_->durable(), 0U);
  state_->snapshot_written(0, 1, at(2));
  state_->hurry();
  state_->commit({.step = 2, .skipped = true});
  told_.clear();
  end_all();
  EXPECT_EQ(told_, Lines{}) << "no record of the snapshot, no further commit";
  state_->voted(1, nullptr);
  EXPECT_EQ(round().front(), "durable 1");
  end();
  end_all();
  EXPECT_EQ(state_->durable(), 1U);
  EXPECT_NE(std::ranges::find(told_, "vote 2"), told_.end());
}

TEST_F(ShardStateTest, AShardStopsWhereAnotherHasLess) {
  begin_shard();
  commit_one();
  state_->voted(0, nullptr);
  ASSERT_EQ(state_->actions.size(), 1U);
  EXPECT_ERROR(std::rethrow_exception(state_->actions.front().error), ErrorCode::io,
               "step 1 is durable on shard 1 of 2, but another shard has only step 0");
  EXPECT_EQ(state_->durable(), 0U);
}

TEST_F(ShardStateTest, AShardStopsWithoutTheOthers) {
  begin_shard();
  commit_one();
  state_->voted(kNoStep, fault());
  EXPECT_EQ(round(), Lines{"failed"});
  EXPECT_EQ(state_->durable(), 0U);
}

TEST_F(JournalStateTest, ItIsOpenWhenItsFirstCommitIsDurable) {
  make(1, 1);
  state_->open_fresh({});
  EXPECT_EQ(round(), (Lines{"commit on path 0", "commit on path 0"})) << "two copies";
  EXPECT_ERROR(state_->snapshot_written(0, 0, at(0)), ErrorCode::internal, "before it is open");
  end();
  EXPECT_EQ(round(), Lines{"sync 0"});
  end();
  EXPECT_EQ(round(), Lines{"opened"});
  EXPECT_FALSE(state_->durable());
}

TEST_F(JournalStateTest, TheFirstCommitWaitsForASnapshotOfEveryChunk) {
  make(1, 2);
  state_->open_fresh({});
  end_all();
  state_->commit({.step = 0});
  state_->snapshot_written(0, 0, at(0));
  EXPECT_EQ(round(), Lines{});
  state_->snapshot_written(1, 0, at(1));
  EXPECT_EQ(round(), Lines{"sync 0"}) << "the pieces";
  end();
  EXPECT_EQ(round().size(), 2 * kCopies) << "their records";
  end();
  EXPECT_EQ(round(), Lines{"sync 0"}) << "the records";
  end();
  EXPECT_EQ(round(), (Lines{"commit on path 0", "commit on path 0"}));
  end();
  EXPECT_EQ(round(), Lines{"sync 0"}) << "the commit";
  end();
  EXPECT_EQ(round(), Lines{"durable 0"});
}

TEST_F(JournalStateTest, AStepIsDurableAfterItsGradientsAndItsCommit) {
  begin();
  const std::uint32_t used = 0;
  state_->commit({.step = 1, .gradients = {&used, 1}});
  EXPECT_EQ(round(), Lines{}) << "its gradient is not there";
  state_->gradient_written(0, 1, at(1));
  EXPECT_EQ(round(), (Lines{"record on path 0", "record on path 0"}));
  end();
  EXPECT_EQ(round(), Lines{"sync 0"}) << "of the gradient and its record";
  EXPECT_EQ(state_->durable(), 0U);
  end();
  EXPECT_EQ(round(), (Lines{"commit on path 0", "commit on path 0"}));
  end();
  EXPECT_EQ(round(), Lines{"sync 0"});
  end();
  EXPECT_EQ(round(), Lines{"durable 1"});
}

TEST_F(JournalStateTest, ASkippedStepWaitsForNoGradient) {
  begin();
  const std::uint32_t used = 0;
  state_->commit({.step = 1, .skipped = true, .gradients = {&used, 1}});
  end_all();
  EXPECT_EQ(state_->durable(), 1U);
}

TEST_F(JournalStateTest, PlacesAreReleasedWhenTheRecordOfTheSuccessorIsDurable) {
  begin();
  const std::uint32_t used = 0;
  state_->gradient_written(0, 1, at(1));
  state_->commit({.step = 1, .gradients = {&used, 1}});
  end_all();
  state_->snapshot_written(0, 1, at(2));
  EXPECT_EQ(round(), Lines{}) << "it can wait for the next commit";
  state_->hurry();
  EXPECT_EQ(round(), Lines{"sync 0"});
  end();
  EXPECT_EQ(round(), (Lines{"record on path 0", "record on path 0"}));
  end();
  EXPECT_EQ(round(), Lines{"sync 0"});
  end();
  EXPECT_EQ(round(), (Lines{"released 0", "released 1"}));
}

TEST_F(JournalStateTest, ARecordThatAPathRefusesGoesToAnother) {
  begin(2);
  state_->gradient_written(0, 1, at(1));
  EXPECT_EQ(round(), (Lines{"record on path 0", "record on path 1"}));
  const Action refused = under_way_.at(0);
  under_way_.erase(under_way_.begin());
  state_->write_ended(refused.task, refused.copy, refused.path, fault());
  EXPECT_EQ(round(), (Lines{"path 0 failed", "record on path 1"}));
  end();
  const std::uint32_t used = 0;
  state_->commit({.step = 1, .gradients = {&used, 1}});
  end_all();
  EXPECT_EQ(state_->durable(), 1U);
  EXPECT_EQ(std::ranges::count(told_, "commit on path 0"), 0) << "it takes no more metadata";
  EXPECT_EQ(std::ranges::count(told_, "sync 0"), 1) << "it is still flushed: the gradient lies there";
}

TEST_F(JournalStateTest, WithoutAPathItFails) {
  begin();
  state_->path_failed(0, fault());
  EXPECT_EQ(round(), (Lines{"path 0 failed", "failed"}));
  state_->gradient_written(0, 1, at(1));
  EXPECT_EQ(round(), Lines{});
}

TEST_F(JournalStateTest, APathThatIsOutIsNotWrittenTo) {
  begin(2);
  state_->path_failed(1, fault());
  const std::uint32_t used = 0;
  state_->gradient_written(0, 1, at(1));
  state_->commit({.step = 1, .gradients = {&used, 1}});
  end_all();
  EXPECT_EQ(state_->durable(), 1U);
  EXPECT_EQ(std::ranges::count(told_, "commit on path 0"), kCopies);
  EXPECT_EQ(std::ranges::count(told_, "commit on path 1"), 0);
  EXPECT_EQ(std::ranges::count(told_, "record on path 1"), 0);
}

TEST_F(JournalStateTest, AFailedFlushEndsItAndTheCheckpointThatWaits) {
  begin();
  const std::uint32_t used = 0;
  state_->gradient_written(0, 1, at(1));
  state_->commit({.step = 1, .gradients = {&used, 1}});
  state_->checkpoint([](const Manifest&, const std::exception_ptr&) {});
  round();
  end();
  EXPECT_EQ(round(), Lines{"sync 0"});
  end(fault());
  EXPECT_EQ(round(), (Lines{"failed", "no checkpoint"}));
  EXPECT_EQ(state_->durable(), 0U);
}

TEST_F(JournalStateTest, ACheckpointIsTheDurableStepInSnapshotsAlone) {
  begin();
  const std::uint32_t used = 0;
  state_->gradient_written(0, 1, at(1));
  state_->commit({.step = 1, .gradients = {&used, 1}});
  state_->checkpoint([](const Manifest&, const std::exception_ptr&) {});
  end_all();
  EXPECT_EQ(std::ranges::count(told_, "checkpoint"), 0);
  EXPECT_ERROR(state_->checkpoint({}), ErrorCode::internal, "while another is being made");
  state_->snapshot_written(0, 1, at(2));
  end_all();
  EXPECT_EQ(std::ranges::count(told_, "checkpoint"), 1);
}

TEST_F(JournalStateTest, OnlySoManyRecordsAreInFlight) {
  constexpr std::uint32_t kObjects = 40, kMost = 32;
  begin(1, kObjects);
  for (std::uint32_t g = 0; g < kObjects; ++g) state_->gradient_written(g, 1, at(100 + g));
  EXPECT_EQ(round().size(), kMost * kCopies);
  end();
  EXPECT_EQ(round().size(), (kObjects - kMost) * kCopies);
}

}  // namespace
}  // namespace spillway::journal
