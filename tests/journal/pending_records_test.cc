#include "spillway/journal/pending_records.h"

#include <gtest/gtest.h>

#include "tests/journal/journal_parts.h"

namespace spillway::journal {
namespace {

constexpr Recordable kAll = StepRange{0, 100};

TEST(PendingRecords, ASnapshotGetsItsRecordOnceAFlushCoversIt) {
  testing::JournalParts parts;
  const Version* version = parts.make_snapshot(0, 4);
  parts.pending.begin_snapshots(kAll);
  EXPECT_EQ(parts.catalog.chunks[0].recording, nullptr);
  parts.pending.want(kAll);
  parts.flush();
  parts.pending.begin_snapshots(kAll);
  EXPECT_EQ(parts.catalog.chunks[0].recording, version);
  EXPECT_EQ(parts.catalog.chunks[1].recording, nullptr);
}

TEST(PendingRecords, ASnapshotOfALaterStepWaits) {
  testing::JournalParts parts;
  parts.make_snapshot(0, 4);
  for (const auto& steps : {Recordable{}, Recordable(StepRange{0, 3}), Recordable(StepRange{5, 9})}) {
    parts.pending.want(steps);
    EXPECT_FALSE(parts.flushes.start(0));
  }
  parts.pending.want(kAll);
  parts.flush();
  parts.pending.begin_snapshots(StepRange{0, 3});
  EXPECT_EQ(parts.catalog.chunks[0].recording, nullptr);
  parts.pending.begin_snapshots(StepRange{0, 4});
  EXPECT_NE(parts.catalog.chunks[0].recording, nullptr);
}

TEST(PendingRecords, ASnapshotIsTrustedWhenItsRecordAndItsStepAreDurable) {
  testing::JournalParts parts;
  const Version* version = parts.make_snapshot(0, 4);
  parts.pending.want(kAll);
  parts.flush();
  parts.pending.begin_snapshots(kAll);
  parts.writes.issue();
  parts.end_records();
  parts.pending.settle(4);
  EXPECT_EQ(parts.catalog.chunks[0].trusted, nullptr);  // the record is not flushed
  parts.pending.want(kAll);
  parts.flush();
  parts.pending.settle(std::nullopt);
  parts.pending.settle(3);
  EXPECT_EQ(parts.catalog.chunks[0].trusted, nullptr);
  parts.pending.settle(4);
  EXPECT_EQ(parts.catalog.chunks[0].trusted, version);
}

TEST(PendingRecords, AGradientWaitsForASlot) {
  testing::JournalParts parts;
  const auto slots = parts.layout.slots(ObjectKind::gradient, 0);
  for (std::uint64_t step = 1; step <= slots; ++step) parts.make_gradient(0, step);
  parts.pending.place_gradients();
  EXPECT_FALSE(parts.pending.has_gradients());
  const Version* last = parts.make_gradient(0, slots + 1);
  parts.pending.place_gradients();
  EXPECT_TRUE(parts.pending.has_gradients());
  parts.writes.issue();
  parts.end_records();
  parts.catalog.drop_gradient(0, 1);
  parts.pending.place_gradients();
  EXPECT_FALSE(parts.pending.has_gradients());
  EXPECT_NE(last->slot, Version::kNoSlot);
}

TEST(PendingRecords, AGradientThatIsDroppedMeanwhileIsReleased) {
  testing::JournalParts parts;
  const Version* version = parts.make_gradient(0, 1);
  parts.catalog.drop_gradient(0, 1);
  EXPECT_TRUE(parts.catalog.take_released().empty());
  parts.pending.place_gradients();
  EXPECT_FALSE(parts.pending.has_gradients());
  EXPECT_EQ(parts.catalog.take_released(), std::vector<Version*>{const_cast<Version*>(version)});
}

}  // namespace
}  // namespace spillway::journal
