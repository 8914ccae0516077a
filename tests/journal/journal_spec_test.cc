#include "spillway/journal/journal_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "spillway/journal/record.h"
#include "tests/journal/samples.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

using testing::some_spec;

TEST(MetadataLayoutTest, NoTwoSlotsOverlap) {
  const MetadataLayout layout(some_spec());
  std::set<Bytes> taken;
  const auto take = [&](Bytes offset, Bytes bytes) {
    EXPECT_EQ(offset % kMetadataAlignment, 0u);
    EXPECT_LE(offset + bytes, layout.used());
    for (Bytes at = offset; at < offset + bytes; at += kMetadataAlignment) EXPECT_TRUE(taken.insert(at).second);
  };
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    for (std::uint32_t s = 0; s < layout.commit_slots(); ++s) take(layout.commit(copy, s), layout.commit_bytes());
    for (const ObjectKind kind : {ObjectKind::snapshot, ObjectKind::gradient}) {
      for (std::uint32_t o = 0; o < layout.objects(kind); ++o) {
        for (std::uint32_t s = 0; s < layout.slots(kind, o); ++s) {
          take(layout.record(kind, o, copy, s), layout.record_bytes());
        }
      }
    }
  }
  EXPECT_EQ(taken.size() * kMetadataAlignment, layout.used());
  EXPECT_EQ(layout.bytes() % MiB, 0u);
  EXPECT_GE(layout.bytes(), layout.used());
}

TEST(MetadataLayoutTest, HoldsTheLargestObjectAndTheLongestPeriod) {
  const MetadataLayout layout(some_spec());
  EXPECT_GE(layout.record_bytes(), encoded_bytes(200));
  EXPECT_EQ(layout.slots(ObjectKind::snapshot, 1), 2u);
  EXPECT_EQ(layout.slots(ObjectKind::gradient, 0), 2u);
  EXPECT_EQ(layout.slots(ObjectKind::gradient, 1), 5u);
}

TEST(MetadataLayoutTest, HasNoSlotsOfWhatAnotherShardHas) {
  JournalSpec spec = some_spec();
  const MetadataLayout whole(spec);
  spec.chunks[2].elsewhere = true;
  const MetadataLayout layout(spec);
  EXPECT_EQ(layout.slots(ObjectKind::snapshot, 2), 0u);
  EXPECT_EQ(layout.slots(ObjectKind::gradient, 1), 5u) << "it feeds chunks of this shard, too";
  EXPECT_EQ(layout.slots(ObjectKind::gradient, 2), 0u);
  EXPECT_TRUE(elsewhere(spec, spec.gradients[2]));
  EXPECT_FALSE(elsewhere(spec, spec.gradients[1]));
  EXPECT_LT(layout.used(), whole.used());
  EXPECT_NE(layout.identity(), whole.identity());
}

TEST(MetadataLayoutTest, TellsRunsAndLayoutsApart) {
  const std::uint64_t identity = MetadataLayout(some_spec()).identity();
  JournalSpec other = some_spec();
  other.run = "ruN";
  EXPECT_NE(MetadataLayout(other).identity(), identity);
  other = some_spec();
  other.chunks[0].period = 2;
  EXPECT_NE(MetadataLayout(other).identity(), identity);
  EXPECT_EQ(MetadataLayout(some_spec()).identity(), identity);
}

TEST(MetadataLayoutTest, RefusesWhatItCannotKeep) {
  JournalSpec spec = some_spec();
  spec.paths = 65;
  EXPECT_ERROR(MetadataLayout{spec}, ErrorCode::bad_input, "65 paths");
  spec = some_spec();
  spec.gradients[1].chunks = 4;
  EXPECT_ERROR(MetadataLayout{spec}, ErrorCode::bad_input, "there are 3 chunks");
  spec = some_spec();
  spec.chunks[1].period = 97;
  EXPECT_ERROR(MetadataLayout{spec}, ErrorCode::bad_input, "1 to 96 steps");
}

TEST(MetadataLayoutTest, AChunkThatNeverChangesIsAnotherLayout) {
  JournalSpec other = some_spec();
  other.chunks[0].constant = true;
  EXPECT_NE(MetadataLayout(other).identity(), MetadataLayout(some_spec()).identity());
  EXPECT_EQ(MetadataLayout(other).used(), MetadataLayout(some_spec()).used());
}

TEST(MetadataLayoutTest, RecordsAreSpreadOverThePaths) {
  const MetadataLayout layout(some_spec());
  EXPECT_EQ(layout.home(ObjectKind::snapshot, 0), 0U);
  EXPECT_EQ(layout.home(ObjectKind::snapshot, 2), 2U);
  EXPECT_EQ(layout.home(ObjectKind::gradient, 2), 2U) << "that of the first chunk which it feeds";
}

}  // namespace
}  // namespace spillway::journal
