#include "spillway/journal/run_journal.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "tests/storage/pool_fixture.h"

namespace spillway::journal {
namespace {

constexpr Bytes kCapacity = 8 * MiB;
constexpr Bytes kObject = 4 * KiB;

/// The journal of a chunk with a gradient, over one path whose ring a test can spoil.
class RunJournalTest : public ::testing::Test {
 protected:
  RunJournalTest() {
    open_path(false);
    join();
    journal_->open({.before = &before_});
  }
  ~RunJournalTest() override { leave(); }

  void open_path(bool reopen) {
    auto options = storage::testing::options_in(directory_.path(), kCapacity);
    options.metadata = MetadataLayout(spec_).bytes();
    options.reopen = reopen;
    path_ = std::make_unique<storage::Path>(options, sys::faulty(sys::make_ring, faults_));
  }
  void join() {
    journal_.emplace(spec_, std::vector{path_.get()}, 0);
    pool_.emplace(std::vector<storage::PoolPath>{{path_.get(), kCapacity, {}, "0"}}, journal_->pool_options());
    journal_->attach(*pool_);
  }
  /// Ends everything in the order in which a run does.
  void leave() {
    if (journal_) journal_->stop();
    pool_.reset();
    journal_.reset();
  }

  /// Writes an object to new places, as it is to stand in a record.
  std::vector<Piece> write() {
    storage::testing::Object object(memory_.span().first(kObject));
    object.write(*pool_);
    return {piece_of(journal_->paths(), object.places[0], kObject, 0)};
  }
  void snapshot(std::uint64_t step) { journal_->snapshot_written(0, step, write()); }
  void commit_with_gradient(std::uint64_t step) {
    const std::uint32_t used = 0;
    journal_->gradient_written(0, step, write());
    journal_->commit({.step = step, .gradients = {&used, 1}});
  }
  void first_step() {
    snapshot(0);
    journal_->commit({.step = 0});
    journal_->wait_durable(0);
  }
  [[nodiscard]] Bytes used() const { return kCapacity - pool_->free(); }

  const JournalSpec spec_{.run = "test", .paths = 1, .chunks = {{}}, .gradients = {{}}};
  spillway::testing::TemporaryDirectory directory_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  sys::Mapping memory_{MiB};
  Recovered before_;
  std::unique_ptr<storage::Path> path_;
  std::optional<RunJournal> journal_;
  std::optional<storage::Pool> pool_;
};

TEST_F(RunJournalTest, ADurableStepIsFoundAgain) {
  first_step();
  commit_with_gradient(1);
  journal_->wait_durable(1);
  leave();
  path_.reset();
  open_path(true);
  join();
  const Recovered found = recover(spec_, journal_->media());
  ASSERT_TRUE(found.found);
  EXPECT_EQ(found.newest.step, 1U);
  EXPECT_EQ(found.places.size(), 2U);
  for (const storage::Place place : found.places) pool_->claim(place);
  journal_->open({.before = &found, .resume = true});
  EXPECT_EQ(used(), 2 * MiB);
  snapshot(1);
  commit_with_gradient(2);
  journal_->wait_durable(2);
}

TEST_F(RunJournalTest, PlacesGoBackToThePoolWhenNobodyNeedsThem) {
  first_step();
  for (std::uint64_t step = 1; step <= 5; ++step) {
    commit_with_gradient(step);
    journal_->wait_durable(step);
    snapshot(step);
  }
  commit_with_gradient(6);
  journal_->commit({.step = 7, .skipped = true});
  journal_->wait_durable(7);  // what followed from step 6 was told before
  EXPECT_EQ(used(), 2 * MiB) << "the newest snapshot and the gradient after it";
}

TEST_F(RunJournalTest, ACheckpointIsPinned) {
  first_step();
  const Manifest manifest = journal_->checkpoint();
  EXPECT_EQ(manifest.identity, journal_->identity());
  EXPECT_EQ(manifest.commit.step, 0U);
  ASSERT_EQ(manifest.snapshots.size(), 1U);
  const auto pinned = manifest.snapshots[0].pieces.at(0).place;
  commit_with_gradient(1);
  snapshot(1);
  commit_with_gradient(2);
  journal_->commit({.step = 3, .skipped = true});
  journal_->wait_durable(3);
  EXPECT_EQ(used(), 3 * MiB);
  EXPECT_ERROR(pool_->claim(pinned), ErrorCode::internal, "is in use");
  journal_->unpin(manifest);
  journal_->commit({.step = 4, .skipped = true});
  journal_->wait_durable(4);
  EXPECT_EQ(used(), 2 * MiB);
}

TEST_F(RunJournalTest, AFailedFlushEndsEveryWaitAndClosesThePool) {
  first_step();
  faults_->fail(sys::Operation::sync, 0, EIO);
  commit_with_gradient(1);
  EXPECT_ERROR(journal_->wait_durable(1), ErrorCode::io, "flushing");
  EXPECT_ERROR((void)journal_->checkpoint(), ErrorCode::io, "flushing");
  journal_->stop();  // the pool has been told by then
  EXPECT_ERROR(write(), ErrorCode::io, "flushing");
}

TEST_F(RunJournalTest, WhoGivesUpEndsEveryWait) {
  first_step();
  journal_->give_up(std::make_exception_ptr(Error(ErrorCode::io, "a gradient could not be written")));
  EXPECT_ERROR(journal_->wait_durable(1), ErrorCode::io, "a gradient could not be written");
}

TEST_F(RunJournalTest, APieceOfAnotherLengthIsAnError) {
  storage::testing::Object object(memory_.span().first(kObject));
  object.write(*pool_);
  EXPECT_ERROR((void)piece_of(journal_->paths(), object.places[0], 2 * kObject, 0), ErrorCode::internal,
               "4096 bytes instead of 8192");
}

TEST_F(RunJournalTest, WhatIsExpectedOfAPieceIsVerified) {
  storage::testing::Object object(memory_.span().first(kObject));
  object.write(*pool_);
  Piece piece = piece_of(std::vector{path_.get()}, object.places[0], kObject, 1);
  EXPECT_EQ(piece.part, 1U);
  ++piece.checksum;
  expect(*path_, piece);
  EXPECT_ERROR(object.read(*pool_), ErrorCode::corrupt, "is corrupt");
}

/// The journal of many chunks over a small and a large path of the same speed.
class UnevenPaths : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kChunks = 24;
  static constexpr Bytes kLowWater = 4 * MiB;

  UnevenPaths() {
    for (const auto& member : parts_.members()) paths_.push_back(member.path);
    journal_ = std::make_unique<RunJournal>(spec_, paths_, kLowWater);
    pool_ = std::make_unique<storage::Pool>(parts_.members(), journal_->pool_options());
    journal_->attach(*pool_);
    journal_->open({.before = &before_});
  }
  ~UnevenPaths() override {
    journal_->stop();
    pool_.reset();
  }

  std::vector<Piece> write() {
    storage::testing::Object object(memory_.span());
    object.write(*pool_);
    return {piece_of(journal_->paths(), object.places[0], memory_.span().size(), 0)};
  }
  void write_snapshot(std::uint32_t chunk, std::uint64_t step) {
    journal_->snapshot_written(chunk, step, write());
    while (!journal_->quiet()) std::this_thread::yield();
  }
  void begin() {
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) write_snapshot(chunk, 0);
    journal_->commit({.step = 0});
    journal_->wait_durable(0);
  }
  void commit_with_gradient(std::uint64_t step) {
    const std::uint32_t used = 0;
    journal_->gradient_written(0, step, write());
    journal_->commit({.step = step, .gradients = {&used, 1}});
    journal_->wait_durable(step);
  }
  [[nodiscard]] Bytes free(std::size_t path) const { return pool_->paths()[path].free; }
  [[nodiscard]] std::uint64_t flushes() const { return pool_->paths()[0].moved.syncs; }

  const JournalSpec spec_{
      .run = "test", .paths = 2, .chunks = std::vector<SnapshotSpec>(kChunks), .gradients = {{.chunks = kChunks}}};
  storage::testing::PoolParts parts_{{20 * MiB, 200 * MiB}, {}, MetadataLayout(spec_).bytes()};
  sys::Mapping memory_{kObject};
  Recovered before_;
  std::vector<storage::Path*> paths_;
  std::unique_ptr<RunJournal> journal_;
  std::unique_ptr<storage::Pool> pool_;
};

TEST_F(UnevenPaths, AFullPathIsRelievedBeforeItsShareGoesToTheOthers) {
  begin();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    commit_with_gradient(step);
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      write_snapshot(chunk, step);
      EXPECT_GT(free(0), 0U) << "step " << step << ", chunk " << chunk;
    }
  }
}

TEST_F(UnevenPaths, APathFullOfNeededVersionsIsNotFlushedForEachSnapshot) {
  begin();
  std::vector<storage::testing::Object> ballast;
  while (free(0) > MiB) {
    ballast.emplace_back(memory_.span());
    ballast.back().write(*pool_);
  }
  commit_with_gradient(1);
  const auto before = flushes();
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) write_snapshot(chunk, 1);
  EXPECT_LT(flushes() - before, kChunks) << "an epoch has two";
}

}  // namespace
}  // namespace spillway::journal
