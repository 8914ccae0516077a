#include "spillway/journal/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "spillway/journal/commit.h"
#include "spillway/journal/manifest.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

constexpr std::uint64_t kIdentity = 0x1234;

std::vector<Piece> pieces(std::size_t count) {
  std::vector<Piece> out;
  for (std::uint32_t i = 0; i < count; ++i) out.push_back({{i % 3, 100 + i}, 4096 * (i + 1), i % 2, i * 77});
  return out;
}

Commit some_commit() {
  Commit out;
  out.generation = 7;
  out.step = 12;
  out.previous = 10;
  out.skipped = true;
  out.rank = 1;
  out.world = 4;
  for (std::size_t i = 0; i < out.update.size(); ++i) out.update[i] = std::byte(i + 1);
  out.ancestors = {{1, 3, 4}, {4, 4, 9}};
  out.use(3);
  out.use(130);
  out.payload = std::vector<std::byte>(1000, std::byte{42});
  return out;
}

TEST(RecordTest, ReturnsWhatWentIn) {
  for (const std::size_t count : {1, 2, 100}) {
    std::vector<std::byte> slot(4096, std::byte{9});
    const RecordHead in{ObjectKind::gradient, 5, 3, 1u << 20};
    encode(in, pieces(count), kIdentity, slot);
    RecordHead out;
    std::vector<Piece> got;
    ASSERT_EQ(decode(slot, kIdentity, out, got), SlotState::whole);
    EXPECT_EQ(got, pieces(count));
    EXPECT_EQ(out.kind, in.kind);
    EXPECT_EQ(out.object, in.object);
    EXPECT_EQ(out.generation, in.generation);
    EXPECT_EQ(out.version, in.version);
  }
}

TEST(RecordTest, EveryBitIsGuarded) {
  std::vector<std::byte> slot(4096);
  encode({ObjectKind::snapshot, 5, 3, 8}, pieces(20), kIdentity, slot);
  RecordHead head;
  std::vector<Piece> got;
  for (std::size_t bit = 0; bit < encoded_bytes(20) * 8; ++bit) {
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_EQ(decode(slot, kIdentity, head, got), SlotState::damaged) << bit;
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(RecordTest, TellsEmptyForeignAndDamagedApart) {
  std::vector<std::byte> slot(4096);
  RecordHead head;
  std::vector<Piece> got;
  EXPECT_EQ(decode(slot, kIdentity, head, got), SlotState::empty);
  EXPECT_EQ(decode({}, kIdentity, head, got), SlotState::damaged);
  encode({ObjectKind::snapshot, 0, 1, 1}, pieces(1), kIdentity + 1, slot);
  EXPECT_EQ(decode(slot, kIdentity, head, got), SlotState::foreign);
  std::fill(slot.begin(), slot.begin() + 512, std::byte{0});
  slot[3000] = std::byte{1};
  EXPECT_EQ(decode(slot, kIdentity, head, got), SlotState::damaged);
}

TEST(CommitTest, ReturnsWhatWentIn) {
  const Commit in = some_commit();
  std::vector<std::byte> slot(round_up(encoded_bytes(in), 4096));
  encode(in, kIdentity, slot);
  Commit out;
  ASSERT_EQ(decode(slot, kIdentity, out), SlotState::whole);
  EXPECT_EQ(out, in);
  EXPECT_TRUE(out.used(3) && out.used(130));
  EXPECT_FALSE(out.used(4) || out.used(1000));
  EXPECT_EQ(decode(slot, kIdentity + 1, out), SlotState::foreign);
}

TEST(CommitTest, EveryBitIsGuarded) {
  const Commit in = some_commit();
  std::vector<std::byte> slot(round_up(encoded_bytes(in), 4096));
  encode(in, kIdentity, slot);
  Commit out;
  for (std::size_t bit = 0; bit < encoded_bytes(in) * 8; ++bit) {
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_EQ(decode(slot, kIdentity, out), SlotState::damaged) << bit;
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(CommitTest, KnowsItsLine) {
  const Commit c = some_commit();
  EXPECT_TRUE(c.in_line(7, 12) && c.in_line(2, 4) && c.in_line(4, 9));
  EXPECT_FALSE(c.in_line(7, 13) || c.in_line(2, 5) || c.in_line(5, 1) || c.in_line(8, 1));
}

TEST(CommitTest, RestartsAtOneStepAreOneAncestor) {
  Commit c;
  c.generation = 1;
  c.step = 5;
  for (std::uint32_t restart = 0; restart < 1000; ++restart) {
    c.ancestors = continue_line(c, {3});
    ++c.generation;
  }
  EXPECT_EQ(c.ancestors, (std::vector<Ancestor>{{1, 1000, 5}}));
}

TEST(CommitTest, ForgetsAncestorsThatNoRecordNeeds) {
  Commit c = some_commit();
  EXPECT_EQ(continue_line(c, {9}), (std::vector<Ancestor>{{4, 4, 9}, {7, 7, 12}}));
  EXPECT_EQ(continue_line(c, {12}), (std::vector<Ancestor>{{7, 7, 12}}));
  EXPECT_EQ(continue_line(c, {12, {4}}), (std::vector<Ancestor>{{4, 4, 9}, {7, 7, 12}}))
      << "a constant snapshot is of it";
}

TEST(ManifestTest, ReturnsWhatWentIn) {
  const Manifest in{kIdentity, some_commit(), {{0, 12, pieces(3)}, {1, 11, pieces(1)}}};
  EXPECT_EQ(decode_manifest(encode(in), kIdentity), in);
  EXPECT_ERROR((void)decode_manifest(encode(in), kIdentity + 1), ErrorCode::bad_input, "another run");
}

TEST(ManifestTest, EveryByteIsGuarded) {
  const std::vector<std::byte> good = encode(Manifest{kIdentity, some_commit(), {{0, 12, pieces(3)}}});
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{4};
    EXPECT_ERROR((void)decode_manifest(bad, kIdentity), ErrorCode::corrupt, "not whole");
  }
  EXPECT_ERROR((void)decode_manifest(std::span(good).first(good.size() - 8), kIdentity), ErrorCode::corrupt,
               "not whole");
}

JournalSpec some_spec() {
  JournalSpec spec;
  spec.run = "run";
  spec.paths = 3;
  spec.chunks = {{3, 1}, {200, 4}, {2, 1}};
  spec.gradients = {{1, 0, 1}, {40, 0, 3}, {1, 2, 1}};
  return spec;
}

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

}  // namespace
}  // namespace spillway::journal
