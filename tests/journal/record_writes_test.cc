#include "spillway/journal/record_writes.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/journal/record.h"
#include "tests/journal/journal_parts.h"

namespace spillway::journal {
namespace {

using Paths = std::vector<std::uint32_t>;

TEST(RecordWrites, ARecordGoesToTwoPathsWithTheBytesOfItsVersion) {
  testing::JournalParts parts;
  Version* version = parts.catalog.make(5, 1, testing::JournalParts::at(3));
  version->slot = 1;
  parts.writes.queue(ObjectKind::snapshot, 1, version);
  EXPECT_TRUE(parts.actions.empty());
  parts.writes.issue();
  ASSERT_EQ(parts.actions.size(), kCopies);
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    const Action& action = parts.actions[copy];
    EXPECT_EQ(action.offset, parts.layout.record(ObjectKind::snapshot, 1, copy, 1));
    RecordHead head;
    std::vector<Piece> pieces;
    ASSERT_EQ(decode(action.bytes, parts.layout.identity(), head, pieces), SlotState::whole);
    EXPECT_EQ(head.version, 5U);
    EXPECT_EQ(pieces, testing::JournalParts::at(3));
  }
  EXPECT_EQ(version->writing, 1U);
  EXPECT_EQ(parts.end_records().size(), kCopies);
  EXPECT_TRUE(version->recorded);
  EXPECT_EQ(version->record_paths, PathSet{3});
  EXPECT_EQ(version->writing, 0U);
}

TEST(RecordWrites, ACopyGoesToAnotherPathWhereItsOwnHasFailed) {
  testing::JournalParts parts;
  Version* version = parts.catalog.make(5, 1, testing::JournalParts::at(3));
  version->slot = 0;
  parts.writes.queue(ObjectKind::gradient, 0, version);
  parts.writes.issue();
  const Action lost = parts.actions.front();
  parts.actions.pop_front();
  parts.usable &= ~(PathSet{1} << lost.path);
  parts.writes.write_copy(lost.task, lost.copy);
  EXPECT_EQ(parts.end_records(), Paths(kCopies, 1 - lost.path));
  EXPECT_EQ(version->record_paths, parts.usable);
}

TEST(RecordWrites, AFlushWaitsForRecordsOfSnapshotsButNotOfGradients) {
  for (const auto kind : {ObjectKind::snapshot, ObjectKind::gradient}) {
    testing::JournalParts parts;
    Version* version = parts.catalog.make(5, 1, testing::JournalParts::at(3));
    version->slot = 0;
    parts.writes.queue(kind, 0, version);
    parts.flushes.want_unseen();
    EXPECT_EQ(parts.flushes.start(0), kind == ObjectKind::gradient);
  }
}

TEST(RecordWrites, FewRecordsAreInFlight) {
  testing::JournalParts parts;
  std::vector<Version*> versions;
  for (std::uint32_t i = 0; i < 100; ++i) {
    versions.push_back(parts.catalog.make(i, 1, testing::JournalParts::at(i)));
    versions.back()->slot = 0;
    parts.writes.queue(ObjectKind::gradient, 0, versions.back());
  }
  std::size_t rounds = 0;
  for (std::size_t left = versions.size(); left != 0; ++rounds) {
    parts.writes.issue();
    const auto written = parts.end_records().size() / kCopies;
    EXPECT_LE(written, 32U);
    ASSERT_GT(written, 0U);
    left -= written;
  }
  EXPECT_EQ(rounds, 4U);
}

}  // namespace
}  // namespace spillway::journal
