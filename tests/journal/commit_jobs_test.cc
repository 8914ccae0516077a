#include "spillway/journal/commit_jobs.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/journal/journal_parts.h"

namespace spillway::journal {
namespace {

CommitJob job(CommitJob::Kind kind, std::uint64_t step) {
  CommitJob out{.kind = kind, .commit = {}};
  out.commit.generation = 1;
  out.commit.step = step;
  return out;
}

/// Ends writes of the commit, and the flushes that it asks for.
void write_commit(testing::JournalParts& parts) {
  EXPECT_FALSE(parts.jobs.advance());
  for (const auto path : parts.end_records()) EXPECT_TRUE(parts.jobs.end_write(path, true));
  EXPECT_FALSE(parts.jobs.advance());
  parts.flush();
}

TEST(CommitJobs, ACommitOfGradientsWaitsForTheirRecordsAndAFlush) {
  testing::JournalParts parts;
  auto redo = job(CommitJob::Kind::redo, 1);
  redo.commit.use(0);
  parts.jobs.push(redo);
  EXPECT_FALSE(parts.jobs.advance());
  EXPECT_TRUE(parts.actions.empty());

  const Version* version = parts.make_gradient(0, 1);
  parts.pending.place_gradients();
  parts.writes.issue();
  parts.end_records();
  EXPECT_FALSE(parts.jobs.advance());
  EXPECT_TRUE(parts.actions.empty());
  parts.jobs.note_record(0, *version);
  EXPECT_FALSE(parts.jobs.advance());
  EXPECT_TRUE(parts.actions.empty());  // the record is not flushed
  parts.flush();
  write_commit(parts);
  const auto done = parts.jobs.advance();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->commit.step, 1U);
  EXPECT_TRUE(parts.jobs.empty());
}

TEST(CommitJobs, CommitsEndInTheirOrderInSlotsOfTheirOwn) {
  testing::JournalParts parts;
  std::set<std::uint32_t> slots;
  for (std::uint64_t step = 1; step <= 3; ++step) parts.jobs.push(job(CommitJob::Kind::redo, step));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    parts.flush();
    write_commit(parts);
    const auto done = parts.jobs.advance();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->commit.step, step);
    slots.insert(done->slot);
  }
  EXPECT_EQ(slots.size(), 3U);  // no snapshot counts yet, so replay needs all three
}

TEST(CommitJobs, ACommitStallsWhereReplayNeedsEverySlot) {
  testing::JournalParts parts;
  Recovered before;
  for (std::uint32_t slot = 0; slot < parts.layout.commit_slots(); ++slot) {
    before.commits.push_back({.commit = job(CommitJob::Kind::redo, slot + 1).commit, .slot = slot});
  }
  parts.jobs.keep_slots(before);
  parts.jobs.push(job(CommitJob::Kind::redo, 1000));
  EXPECT_FALSE(parts.jobs.advance());
  EXPECT_TRUE(parts.jobs.stalled());
  EXPECT_TRUE(parts.actions.empty());
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    parts.catalog.chunks[chunk].recording = parts.catalog.make(5, 1, testing::JournalParts::at(chunk));
    parts.catalog.trust(chunk);
  }
  write_commit(parts);
  EXPECT_FALSE(parts.jobs.stalled());
  EXPECT_TRUE(parts.jobs.advance());
}

TEST(CommitJobs, ACommitThatNoPathTakesIsNone) {
  testing::JournalParts parts(1);
  parts.jobs.push(job(CommitJob::Kind::blank, 0));
  EXPECT_FALSE(parts.jobs.advance());
  ASSERT_EQ(parts.actions.size(), kCopies);
  EXPECT_TRUE(parts.jobs.end_write(0, false));  // the other copy may be written
  EXPECT_FALSE(parts.jobs.end_write(0, false));
}

TEST(CommitJobs, AShardWaitsUntilAllHaveTheStep) {
  testing::JournalParts parts(1, 2);
  parts.jobs.push(job(CommitJob::Kind::redo, 1));
  parts.flush();
  write_commit(parts);
  EXPECT_FALSE(parts.jobs.advance());
  ASSERT_EQ(parts.actions.size(), 1U);
  EXPECT_EQ(parts.actions.front().kind, Action::Kind::vote);
  EXPECT_EQ(parts.actions.front().vote, 1);
  EXPECT_FALSE(parts.jobs.advance());
  EXPECT_EQ(parts.actions.size(), 1U);  // it asks once
  parts.jobs.agree();
  EXPECT_TRUE(parts.jobs.advance());
}

}  // namespace
}  // namespace spillway::journal
