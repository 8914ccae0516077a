#include "spillway/journal/checkpoint_goal.h"

#include <gtest/gtest.h>

#include "tests/journal/journal_parts.h"

namespace spillway::journal {
namespace {

Commit commit_of(std::uint64_t step) {
  Commit out;
  out.step = step;
  out.ancestors = {{1, 1, 2}};
  out.slot = 4;
  out.paths = 3;
  return out;
}

TEST(CheckpointGoal, HasAManifestOnceAllSnapshotsOfItsStepCount) {
  testing::JournalParts parts;
  CheckpointGoal goal(parts.layout, parts.catalog);
  EXPECT_FALSE(goal.is_asked());
  EXPECT_FALSE(goal.make_manifest(9));
  goal.ask(commit_of(5), nullptr);
  EXPECT_TRUE(goal.is_asked());
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    EXPECT_FALSE(goal.make_manifest(5));
    parts.catalog.chunks[chunk].recording = parts.catalog.make(5, 1, testing::JournalParts::at(chunk));
    parts.catalog.trust(chunk);
  }
  EXPECT_FALSE(goal.make_manifest(std::nullopt));
  EXPECT_FALSE(goal.make_manifest(4));
  const auto manifest = goal.make_manifest(5);
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->identity, parts.layout.identity());
  EXPECT_EQ(manifest->commit.step, 5U);
  EXPECT_TRUE(manifest->commit.ancestors.empty());
  EXPECT_EQ(manifest->commit.slot, kNoSlot);
  ASSERT_EQ(manifest->snapshots.size(), 2U);
  EXPECT_EQ(manifest->snapshots[1].pieces, testing::JournalParts::at(1));
}

TEST(CheckpointGoal, AnswersOnce) {
  testing::JournalParts parts;
  CheckpointGoal goal(parts.layout, parts.catalog);
  int answers = 0;
  goal.ask(commit_of(5), [&](const Manifest&, const std::exception_ptr&) { ++answers; });
  goal.end()({}, nullptr);
  EXPECT_EQ(answers, 1);
  EXPECT_FALSE(goal.is_asked());
}

TEST(GatheredChunks, CountsSnapshotsThatAreWrittenAtLeast) {
  testing::JournalParts parts;
  GatheredChunks gathered(parts.catalog);
  parts.make_snapshot(0, 5);
  EXPECT_FALSE(gathered.count(commit_of(5)));
  parts.make_snapshot(1, 4);
  EXPECT_FALSE(gathered.count(commit_of(5)));
  parts.make_snapshot(1, 5);
  EXPECT_FALSE(gathered.has_all());
  EXPECT_TRUE(gathered.count(commit_of(5)));
  EXPECT_TRUE(gathered.has_all());
  gathered.restart();
  EXPECT_FALSE(gathered.count(commit_of(6)));
}

}  // namespace
}  // namespace spillway::journal
