#include "spillway/journal/metadata_reader.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "tests/journal/power_cut_media.h"
#include "tests/journal/samples.h"

namespace spillway::journal {
namespace {

using testing::Remains;
using testing::RemainsMedia;
using testing::some_pieces;

/// A drive that cannot give some sectors.
class UnreadableSectors : public RemainsMedia {
 public:
  UnreadableSectors(const std::vector<Remains>& paths, std::vector<Bytes> at)
      : RemainsMedia(paths), at_(std::move(at)) {}
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override {
    for (const Bytes at : at_) {
      if (path == 0 && offset <= at && at < offset + bytes.size()) throw Error(ErrorCode::io, text("unreadable ", at));
    }
    RemainsMedia::read(path, offset, bytes);
  }

 private:
  std::vector<Bytes> at_;
};

/// The metadata of two paths, in which a test writes slots.
class MetadataReaderTest : public ::testing::Test {
 protected:
  MetadataReaderTest()
      : spec_{.run = "run", .paths = 2, .chunks = {{2}, {2}}, .gradients = {{1, 0, 1}}},
        layout_(spec_),
        remains_(2, {std::vector<std::byte>(layout_.bytes()), {}}) {}

  std::span<std::byte> slot(std::uint32_t path, Bytes offset, Bytes bytes) {
    return std::span(remains_[path].metadata).subspan(offset, bytes);
  }
  void write_commit(std::uint32_t path, std::uint32_t copy, std::uint32_t number, const Commit& commit) {
    encode(commit, layout_.identity(), slot(path, layout_.commit(copy, number), layout_.commit_bytes()));
  }
  std::span<std::byte> record_slot(std::uint32_t path, std::uint32_t chunk, std::uint32_t number) {
    return slot(path, layout_.record(ObjectKind::snapshot, chunk, 0, number), layout_.record_bytes());
  }
  void write_record(std::uint32_t path, std::uint32_t chunk, std::uint32_t number, std::uint64_t version) {
    encode({ObjectKind::snapshot, chunk, 1, version}, some_pieces(2), layout_.identity(),
           record_slot(path, chunk, number));
  }
  /// Chunk, version and slot of every whole record of a snapshot.
  std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>> records(MetadataReader& reader) {
    std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>> out;
    reader.records(ObjectKind::snapshot,
                   [&](const RecordHead& head, const std::vector<Piece>& pieces, std::uint32_t number) {
                     EXPECT_EQ(pieces, some_pieces(2));
                     out.emplace(head.object, head.version, number);
                   });
    return out;
  }

  JournalSpec spec_;
  MetadataLayout layout_;
  std::vector<Remains> remains_;
  RecoveryOptions options_;
};

TEST_F(MetadataReaderTest, FindsNothingInNewVolumes) {
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  reader.commits([](const Commit&, std::uint32_t, std::uint32_t) { FAIL(); });
  EXPECT_TRUE(records(reader).empty());
  EXPECT_TRUE(reader.damage.empty());
  EXPECT_EQ(reader.written, 0U);
  EXPECT_FALSE(reader.recorded);
}

TEST_F(MetadataReaderTest, FindsCommitsInEverySlotOfEveryPath) {
  Commit commit;
  commit.step = 3;
  write_commit(0, 0, 0, commit);
  write_commit(0, 1, 2, commit);
  commit.step = 4;
  write_commit(1, 0, layout_.commit_slots() - 1, commit);
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
  reader.commits([&](const Commit& it, std::uint32_t number, std::uint32_t) { found.emplace_back(it.step, number); });
  EXPECT_EQ(found, (decltype(found){{3, 0}, {3, 2}, {4, layout_.commit_slots() - 1}}));
  EXPECT_EQ(reader.written, 3U);
  EXPECT_TRUE(reader.damage.empty());
}

TEST_F(MetadataReaderTest, FindsRecordsWithTheirObjectAndSlot) {
  write_record(0, 0, 0, 5);
  write_record(0, 0, 1, 6);
  write_record(1, 1, 1, 7);
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  EXPECT_EQ(records(reader),
            (std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>>{{0, 5, 0}, {0, 6, 1}, {1, 7, 1}}));
  EXPECT_TRUE(reader.recorded);
}

TEST_F(MetadataReaderTest, ARecordInTheSlotOfAnotherObjectIsDamaged) {
  encode({ObjectKind::snapshot, 1, 1, 5}, some_pieces(2), layout_.identity(), record_slot(0, 0, 0));
  encode({ObjectKind::gradient, 0, 1, 5}, some_pieces(2), layout_.identity(), record_slot(0, 0, 1));
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  EXPECT_TRUE(records(reader).empty());
  ASSERT_EQ(reader.damage.size(), 2U);
  EXPECT_EQ(reader.damage[0].what, "the record of the snapshot of chunk 0, copy 0, slot 0");
  EXPECT_EQ(reader.damage[0].offset, layout_.record(ObjectKind::snapshot, 0, 0, 0));
  EXPECT_EQ(reader.damage[0].bytes, layout_.record_bytes());
}

TEST_F(MetadataReaderTest, ACommitThatTheRunCannotHaveIsDamaged) {
  Commit commit;
  commit.use(64);
  write_commit(1, 0, 1, commit);
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  reader.commits([](const Commit&, std::uint32_t, std::uint32_t) { FAIL(); });
  ASSERT_EQ(reader.damage.size(), 1U);
  EXPECT_EQ(reader.damage[0].path, 1U);
  EXPECT_EQ(reader.damage[0].what, "the commit in slot 1, copy 0");
}

TEST_F(MetadataReaderTest, WhatIsObjectedToIsDamagedAndSaysWhy) {
  write_record(0, 1, 0, 5);
  options_.objection = [](ObjectKind, std::uint32_t object, std::span<const Piece>) -> std::string {
    return object == 1 ? "no such place" : "";
  };
  options_.name = [](ObjectKind, std::uint32_t object) { return text("layer ", object); };
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  EXPECT_TRUE(records(reader).empty());
  ASSERT_EQ(reader.damage.size(), 1U);
  EXPECT_EQ(reader.damage[0].what, "the record of the snapshot of layer 1, copy 0, slot 0: no such place");
}

TEST_F(MetadataReaderTest, BytesBehindAWholeRecordAreSpokenOf) {
  write_record(0, 0, 0, 5);
  record_slot(0, 0, 0)[4000] = std::byte{1};
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  EXPECT_EQ(records(reader).size(), 1U) << "it counts";
  ASSERT_EQ(reader.damage.size(), 1U);
  EXPECT_EQ(reader.damage[0].what, "the record of the snapshot of chunk 0, copy 0, slot 0, behind its end");
}

TEST_F(MetadataReaderTest, RecordsOfAnotherRunAreCounted) {
  encode({ObjectKind::snapshot, 0, 1, 5}, some_pieces(2), layout_.identity() + 1, record_slot(0, 0, 0));
  RemainsMedia media(remains_);
  MetadataReader reader(spec_, media, options_);
  EXPECT_TRUE(records(reader).empty());
  EXPECT_EQ(reader.foreign, 1U);
  EXPECT_TRUE(reader.damage.empty());
}

TEST_F(MetadataReaderTest, AnUnreadableSectorCostsItsSlotAlone) {
  write_record(0, 0, 0, 5);
  write_record(0, 0, 1, 6);
  UnreadableSectors media(remains_, {layout_.record(ObjectKind::snapshot, 0, 0, 0) + 512});
  MetadataReader reader(spec_, media, options_);
  EXPECT_EQ(records(reader).size(), 1U);
  ASSERT_EQ(reader.damage.size(), 1U);
  EXPECT_EQ(reader.damage[0].what, "the record of the snapshot of chunk 0, copy 0, slot 0, which cannot be read");
}

TEST_F(MetadataReaderTest, SaysWhyAPathGivesNeitherCopyOfASlotForCommits) {
  const Bytes first = layout_.commit(0, 1) + 512, other = layout_.commit(1, 2) + 512, second = layout_.commit(1, 1);
  for (const bool both : {false, true}) {
    UnreadableSectors media(remains_, both ? std::vector{first, second} : std::vector{first, other});
    MetadataReader reader(spec_, media, options_);
    reader.commits([](const Commit&, std::uint32_t, std::uint32_t) { FAIL(); });
    EXPECT_EQ(reader.damage.size(), 2U);
    EXPECT_EQ(reader.unread, both ? text("unreadable ", second) : "");
  }
}

TEST_F(MetadataReaderTest, SaysWhereRecordsShouldBe) {
  RemainsMedia media(remains_);
  const MetadataReader reader(spec_, media, options_);
  EXPECT_EQ(reader.places_of(ObjectKind::snapshot, 1),
            text("path 1 from byte ", layout_.record(ObjectKind::snapshot, 1, 0, 0), " and path 0 from byte ",
                 layout_.record(ObjectKind::snapshot, 1, 1, 0), " of the metadata"));
}

}  // namespace
}  // namespace spillway::journal
