#include "spillway/journal/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/journal/journal_world.h"
#include "tests/nightly.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

using testing::World;
using testing::WorldSetup;

struct Totals {
  std::uint64_t events = 0, restarts = 0, checkpoints = 0;
};

/// Runs a world for every seed; the first thing found wrong. SPILLWAY_SEEDS=N: more of them.
std::string run(WorldSetup setup, std::uint32_t seeds, Totals& totals) {
  const char* more = std::getenv("SPILLWAY_SEEDS");
  if (more != nullptr) seeds = std::max(seeds, static_cast<std::uint32_t>(std::atoi(more)));
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    setup.seed = seed;
    setup.paths = 1 + seed % 3;
    World world(setup);
    const std::string wrong = world.run();
    if (!wrong.empty()) return text("seed ", seed, ": ", wrong);
    totals.events += world.events();
    totals.restarts += world.restarts();
    totals.checkpoints += world.checkpoints_made();
  }
  return {};
}

TEST(JournalTest, EveryCutLeavesTheStepsThatWereReportedDurable) {
  Totals totals;
  const auto seeds = spillway::testing::few_or(3U, 8U);
  EXPECT_EQ(run({}, seeds, totals), "");
  EXPECT_GT(totals.events, seeds * 200);
  EXPECT_GT(totals.restarts, seeds);
  EXPECT_GT(totals.checkpoints, seeds / 2);
}

TEST(JournalTest, EveryCutLeavesTheLastCheckpoint) {
  Totals totals;
  const auto seeds = spillway::testing::few_or(3U, 8U);
  EXPECT_EQ(run({.durability = Durability::checkpoint}, seeds, totals), "");
  EXPECT_GT(totals.checkpoints, seeds / 2);
}

TEST(JournalTest, AChunkThatNeverChangesIsWrittenOnceAndOfEveryStep) {
  for (const auto durability : {Durability::step, Durability::checkpoint}) {
    Totals totals;
    EXPECT_EQ(run({.steps = 16, .durability = durability, .constant = true}, spillway::testing::few_or(2U, 3U), totals),
              "");
    EXPECT_GT(totals.restarts, 2U);
    EXPECT_GT(totals.checkpoints, 2u);
  }
}

TEST(JournalTest, GoesOnWithoutAPathThatTakesNoWrites) {
  for (std::uint32_t seed = 0; seed < spillway::testing::few_or(3U, 6U); ++seed) {
    World world({.seed = seed, .paths = 2 + seed % 2, .path_fails_at = 40 + 30 * seed});
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

TEST(JournalTest, FailsWhenNoPathTakesWrites) {
  World world({.path_fails_at = 100, .restarts = false});
  EXPECT_EQ(world.run(), "the journal failed: this path takes no writes");
}

TEST(JournalTest, SyncsThatLieAreNoticed) {
  Totals totals;
  EXPECT_NE(run({.lying_syncs = true}, 3, totals), "");
}

/// Does everything at once, before the call returns, but syncs that it holds; counts.
class InstantMedia : public Media {
 public:
  explicit InstantMedia(const JournalSpec& spec)
      : remains_(spec.paths, {std::vector<std::byte>(MetadataLayout(spec).used()), {}}) {}
  void write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) override {
    ++writes;
    offsets.push_back(offset);
    std::copy(bytes.begin(), bytes.end(), remains_[path].metadata.begin() + std::ptrdiff_t(offset));
    done(nullptr);
  }
  void sync(std::uint32_t, Done done) override {
    ++syncs;
    if (holds)
      held.push_back(std::move(done));
    else
      done(sync_error);
  }
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override {
    testing::RemainsMedia(remains_).read(path, offset, bytes);
  }

  int writes = 0, syncs = 0;
  std::vector<Bytes> offsets;  ///< of the writes
  std::exception_ptr sync_error;
  bool holds = false;
  std::vector<Done> held;

 private:
  std::vector<testing::Remains> remains_;
};

/// Remembers what it was told.
class Diary : public JournalListener {
 public:
  void opened() override { lines.push_back("opened"); }
  void durable(std::uint64_t step) override { lines.push_back(text("durable ", step)); }
  void released(std::span<const Piece> pieces) override {
    lines.push_back(text("released ", pieces.front().place.piece));
  }
  void path_failed(std::uint32_t path, std::exception_ptr) override { lines.push_back(text("path ", path, " failed")); }
  void failed(std::exception_ptr) override { lines.push_back("failed"); }
  std::vector<std::string> take() { return std::exchange(lines, {}); }
  std::vector<std::string> lines;
};

/// One chunk of one piece on one path, opened afresh, with step 0 durable at piece 0.
class JournalEventsTest : public ::testing::Test {
 protected:
  explicit JournalEventsTest(Durability durability = Durability::step)
      : spec_(spec(durability)), media_(spec_), journal_(std::in_place, spec_, media_, diary_) {
    journal_->open_fresh(recover(spec_, media_));
    snapshot(0, 0);
    journal_->commit({.step = 0});
    EXPECT_EQ(diary_.take(), (std::vector<std::string>{"opened", "durable 0"}));
  }
  static JournalSpec spec(Durability durability) {
    return {.run = "run", .paths = 1, .chunks = {{}}, .gradients = {{}}, .durability = durability};
  }
  static std::vector<Piece> at(std::uint32_t piece) { return {{{0, piece}, 4096, 0, piece}}; }
  void snapshot(std::uint64_t version, std::uint32_t piece) { journal_->snapshot_written(0, version, at(piece)); }
  void gradient(std::uint64_t version, std::uint32_t piece) { journal_->gradient_written(0, version, at(piece)); }
  void commit(std::uint64_t step, bool skipped = false) {
    const std::uint32_t used = 0;
    journal_->commit({.step = step, .skipped = skipped, .gradients = {&used, 1}});
  }
  using Lines = std::vector<std::string>;

  JournalSpec spec_;
  InstantMedia media_;
  Diary diary_;
  std::optional<Journal> journal_;
};

class CheckpointEventsTest : public JournalEventsTest {
 protected:
  CheckpointEventsTest() : JournalEventsTest(Durability::checkpoint) {}
};

TEST_F(JournalEventsTest, AStepIsDurableWithItsGradients) {
  commit(1);
  EXPECT_EQ(diary_.take(), Lines{});
  gradient(1, 1);
  EXPECT_EQ(diary_.take(), (Lines{"durable 1"}));
}

TEST_F(JournalEventsTest, PlacesAreReleasedWithTheNextCommit) {
  gradient(1, 1);
  commit(1);
  snapshot(1, 2);
  gradient(2, 3);
  EXPECT_EQ(diary_.take(), (Lines{"durable 1"}));
  commit(2);
  EXPECT_EQ(diary_.take(), (Lines{"durable 2", "released 0", "released 1"}));
}

TEST_F(JournalEventsTest, HurryReleasesPlacesAtOnce) {
  gradient(1, 1);
  commit(1);
  snapshot(1, 2);
  diary_.take();
  journal_->hurry();
  EXPECT_EQ(diary_.take(), (Lines{"released 0", "released 1"}));
}

/// What waits for places is left alone as long as a flush may release some.
TEST_F(JournalEventsTest, IsQuietWhenNothingIsUnderWay) {
  EXPECT_TRUE(journal_->quiet());
  media_.holds = true;
  gradient(1, 1);
  commit(1);
  EXPECT_FALSE(journal_->quiet());
  media_.holds = false;
  for (auto& done : std::exchange(media_.held, {})) done(nullptr);
  EXPECT_EQ(diary_.take(), (Lines{"durable 1"}));
  EXPECT_TRUE(journal_->quiet());
}

TEST_F(JournalEventsTest, ASteadyStepFlushesTwice) {
  for (std::uint64_t step = 1; step < 5; ++step) {
    const int syncs = media_.syncs, writes = media_.writes;
    gradient(step, static_cast<std::uint32_t>(2 * step));
    commit(step);
    snapshot(step, static_cast<std::uint32_t>(2 * step + 1));
    if (step == 1) continue;  // there was no snapshot to record yet
    EXPECT_EQ(media_.syncs - syncs, 2);
    EXPECT_EQ(media_.writes - writes, 6);  // gradient's record, snapshot's record, commit, two copies each
  }
}

TEST_F(JournalEventsTest, ASkippedStepNeedsNoGradients) {
  commit(1, true);
  EXPECT_EQ(diary_.take(), (Lines{"durable 1"}));
  gradient(1, 1);  // late
  EXPECT_EQ(diary_.take(), (Lines{"released 1"}));
  gradient(2, 2);
  commit(2, true);
  EXPECT_EQ(diary_.take(), (Lines{"durable 2", "released 2"}));
}

TEST_F(JournalEventsTest, ACheckpointKeepsItsPlaces) {
  gradient(1, 1);
  commit(1);
  snapshot(1, 2);
  Manifest manifest;
  journal_->checkpoint([&](const Manifest& m, std::exception_ptr) { manifest = m; });
  ASSERT_EQ(manifest.snapshots.size(), 1u);
  EXPECT_EQ(manifest.commit.step, 1u);
  EXPECT_EQ(manifest.snapshots[0].pieces, at(2));
  gradient(2, 3);
  commit(2);
  snapshot(2, 4);
  journal_->hurry();
  EXPECT_EQ(diary_.take(), (Lines{"durable 1", "released 0", "released 1", "durable 2", "released 3"}));
  journal_->unpin(manifest);
  EXPECT_EQ(diary_.take(), (Lines{"released 2"}));
  EXPECT_ERROR(journal_->unpin(manifest), ErrorCode::internal, "does not hold");
}

/// A record of many pieces is larger than a sector, so a cut may tear it.
TEST_F(JournalEventsTest, ARecordIsNotWrittenOverTheNewestDurableOne) {
  const MetadataLayout& layout = journal_->layout();
  const auto written = [&](std::uint32_t slot) {
    const Bytes at = layout.record(ObjectKind::snapshot, 0, 0, slot);
    return std::find(media_.offsets.begin(), media_.offsets.end(), at) != media_.offsets.end();
  };
  std::uint32_t newest = written(0) ? 0 : 1;
  for (std::uint32_t step = 1; step < 6; ++step) {
    gradient(step, 2 * step);
    commit(step);
    media_.offsets.clear();
    snapshot(step, 2 * step + 1);
    journal_->hurry();
    EXPECT_FALSE(written(newest)) << "step " << step;
    EXPECT_TRUE(written(1 - newest)) << "step " << step;
    newest = 1 - newest;
  }
}

TEST_F(JournalEventsTest, GoingBackReleasesTheGradientsOfTheAbandonedLine) {
  gradient(1, 1);
  commit(1);
  snapshot(1, 2);
  Manifest manifest;
  journal_->checkpoint([&](const Manifest& m, std::exception_ptr) { manifest = m; });
  gradient(2, 3);
  commit(2);
  EXPECT_EQ(diary_.take(), (Lines{"durable 1", "released 0", "released 1", "durable 2"}));
  journal_.reset();
  Journal again(spec_, media_, diary_);
  again.pin(manifest);
  again.open_at(manifest, recover(spec_, media_));
  EXPECT_EQ(diary_.take(), (Lines{"opened", "durable 1", "released 3"}));
}

TEST_F(JournalEventsTest, AFailedFlushEndsIt) {
  media_.sync_error = std::make_exception_ptr(Error(ErrorCode::io, "flush"));
  gradient(1, 1);
  commit(1);
  EXPECT_EQ(diary_.take(), (Lines{"failed"}));
  bool told = false;
  journal_->checkpoint([&](const Manifest&, std::exception_ptr error) { told = error != nullptr; });
  EXPECT_TRUE(told);
  snapshot(1, 2);
  journal_->hurry();
  EXPECT_EQ(journal_->durable(), 0u);
  EXPECT_EQ(recover(spec_, media_).newest.step, 0u);
}

TEST_F(JournalEventsTest, RefusesWrongUse) {
  EXPECT_ERROR(snapshot(0, 9), ErrorCode::internal, "of step 0 was written after that of step 0");
  EXPECT_ERROR(journal_->snapshot_written(0, 1, {}), ErrorCode::internal, "0 pieces");
  const std::vector<Piece> elsewhere = {{{7, 0}, 4096, 0, 0}};
  EXPECT_ERROR(journal_->snapshot_written(0, 1, elsewhere), ErrorCode::internal, "path 7; there are 1");
  EXPECT_ERROR(journal_->snapshot_written(1, 1, at(5)), ErrorCode::internal, "chunk 1 was written; 1 were announced");
  const std::uint32_t unknown = 64;
  EXPECT_ERROR(journal_->commit({.step = 1, .gradients = {&unknown, 1}}), ErrorCode::internal, "used gradient 64");
  const std::vector<std::byte> large(60 * KiB + 1);
  EXPECT_ERROR(journal_->commit({.step = 1, .payload = large}), ErrorCode::internal, "hold 61440");
  EXPECT_ERROR(journal_->pin({}), ErrorCode::bad_input, "of another run");
  EXPECT_ERROR(journal_->commit({.step = 0}), ErrorCode::internal, "committed after step 0");
  EXPECT_ERROR(journal_->open_fresh({}), ErrorCode::internal, "a second time");
  Journal closed(spec_, media_, diary_);
  EXPECT_ERROR(closed.hurry(), ErrorCode::internal, "before it is open");
  EXPECT_ERROR(closed.open_resumed({}), ErrorCode::internal, "no step is durable");
}

TEST(JournalFlushesTest, AFullCommitFlushesOnceForAllItsSnapshots) {
  constexpr std::uint32_t kChunks = 30;
  const JournalSpec spec{.run = "run", .paths = 1, .chunks = std::vector<SnapshotSpec>(kChunks)};
  InstantMedia media(spec);
  Diary diary;
  Journal journal(spec, media, diary);
  journal.open_fresh({});
  journal.commit({.step = 5});
  for (std::uint32_t c = 0; c < kChunks; ++c) {
    EXPECT_EQ(media.syncs, 1);  // of the opening
    journal.snapshot_written(c, 5, std::vector<Piece>{{{0, c}, 4096, 0, 0}});
  }
  EXPECT_EQ(media.syncs, 4);  // and of the snapshots, their records, the commit
  EXPECT_EQ(diary.take(), (std::vector<std::string>{"opened", "durable 5"}));
}

TEST_F(CheckpointEventsTest, OnlyCheckpointsAreDurable) {
  const int writes = media_.writes;
  for (std::uint32_t step = 1; step < 4; ++step) {
    snapshot(step, step);
    commit(step);
  }
  EXPECT_EQ(diary_.take(), (Lines{"released 1", "released 2"}));
  EXPECT_EQ(media_.writes, writes);
  Manifest manifest;
  journal_->checkpoint([&](const Manifest& m, std::exception_ptr) { manifest = m; });
  EXPECT_EQ(diary_.take(), (Lines{"durable 3", "released 0"}));
  EXPECT_EQ(manifest.snapshots.at(0).pieces, at(3));
  EXPECT_ERROR(gradient(4, 9), ErrorCode::internal, "only checkpoints are durable");
}

/// Completes on two threads of its own.
class ThreadedMedia : public InstantMedia {
 public:
  explicit ThreadedMedia(const JournalSpec& spec) : InstantMedia(spec) {
    for (std::thread& thread : threads_) thread = std::thread([this] { serve(); });
  }
  ~ThreadedMedia() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    more_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void write(std::uint32_t, Bytes, std::span<const std::byte>, Done done) override { add(std::move(done)); }
  void sync(std::uint32_t, Done done) override { add(std::move(done)); }

 private:
  void add(Done done) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(done));
    more_.notify_one();
  }
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      more_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      const Done done = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      done(nullptr);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Done> work_;
  bool stopping_ = false;
  std::array<std::thread, 2> threads_;
};

/// Counts places, and waits for steps.
class WaitingListener : public JournalListener {
 public:
  void opened() override { durable(0); }
  void durable(std::uint64_t step) override {
    const std::lock_guard lock(mutex_);
    in_order_ = in_order_ && (events_ == 0 || step >= last_);
    last_ = step;
    ++events_;
    changed_.notify_all();
  }
  void released(std::span<const Piece> pieces) override { released_ += pieces.size(); }
  void path_failed(std::uint32_t, std::exception_ptr) override { in_order_ = false; }
  void failed(std::exception_ptr) override { in_order_ = false; }
  /// Waits until so many steps were reported; the opening counts as one.
  void wait(std::uint64_t events) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return events_ >= events; });
  }
  std::atomic<std::size_t> released_ = 0;
  std::atomic<bool> in_order_ = true;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t events_ = 0, last_ = 0;
};

TEST(JournalThreadsTest, EventsComeFromAnyThread) {
  constexpr std::uint32_t kChunks = 40, kSteps = 20;
  JournalSpec spec{.run = "run", .paths = 2, .chunks = std::vector<SnapshotSpec>(kChunks)};
  for (std::uint32_t c = 0; c < kChunks; ++c) spec.gradients.push_back({1, c, 1});
  std::vector<std::uint32_t> all(kChunks);
  std::iota(all.begin(), all.end(), 0);
  ThreadedMedia media(spec);
  WaitingListener waiter;
  Journal journal(spec, media, waiter);
  std::uint32_t next = 0;
  const auto piece = [&next] { return std::vector<Piece>{{{next % 2, next++}, 4096, 0, 0}}; };
  journal.open_fresh({});
  waiter.wait(1);
  for (std::uint32_t c = 0; c < kChunks; ++c) journal.snapshot_written(c, 0, piece());
  journal.commit({.step = 0});
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    waiter.wait(step + 1);
    std::vector<std::vector<Piece>> pieces;
    for (std::uint32_t i = 0; i < 2 * kChunks; ++i) pieces.push_back(piece());
    std::thread gradients([&] {
      for (std::uint32_t c = 0; c < kChunks; ++c) journal.gradient_written(c, step, pieces[c]);
    });
    std::thread snapshots([&] {
      for (std::uint32_t c = 0; c < kChunks; ++c) journal.snapshot_written(c, step, pieces[kChunks + c]);
    });
    journal.commit({.step = step, .gradients = all});
    gradients.join();
    snapshots.join();
  }
  waiter.wait(kSteps + 2);
  journal.stop();
  EXPECT_TRUE(waiter.in_order_);
  EXPECT_EQ(journal.durable(), kSteps);
  // All but the snapshots of at most two steps, and their gradients, were released on the way.
  EXPECT_GE(waiter.released_, std::size_t{2 * kChunks * (kSteps - 3)});
}

}  // namespace
}  // namespace spillway::journal
