#include "spillway/journal/catalog.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/storage/allocations.h"

namespace spillway::journal {
namespace {

std::vector<Piece> at(std::uint32_t place) {
  return {{{place % 2, place}, 4096, 0, place}};
}

/// Two chunks with a gradient each, a third gradient that feeds both, and a chunk that no step changes.
class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() : spec_(spec()), catalog_(spec_) {}

  static JournalSpec spec() {
    return {.run = "run",
            .paths = 2,
            .chunks = {{}, {}, {.constant = true}},
            .gradients = {{.first_chunk = 0}, {.first_chunk = 1}, {.first_chunk = 0, .chunks = 2}}};
  }
  /// A snapshot that is recorded, and counts.
  Version* trusted(std::uint32_t chunk, std::uint64_t version, std::uint32_t place, std::uint32_t generation = 1) {
    catalog_.chunks[chunk].recording = catalog_.make(version, generation, at(place));
    catalog_.trust(chunk);
    return catalog_.chunks[chunk].trusted;
  }
  Version* gradient(std::uint32_t number, std::uint64_t version, std::uint32_t place, std::uint32_t generation = 1) {
    auto& held = catalog_.gradients[number].held;
    held.push_back(catalog_.make(version, generation, at(place)));
    held.back()->slot = static_cast<std::uint32_t>(held.size() - 1);
    return held.back();
  }
  /// The places that became free, by number.
  std::vector<std::uint32_t> released() {
    std::vector<std::uint32_t> out;
    for (Version* version : catalog_.take_released()) {
      for (const Piece& piece : version->pieces) out.push_back(piece.place.piece);
      catalog_.recycle(version);
    }
    return out;
  }
  using Places = std::vector<std::uint32_t>;

  JournalSpec spec_;
  Catalog catalog_;
};

TEST_F(CatalogTest, AVersionKnowsItsPiecesAndTheirPaths) {
  const std::vector<Piece> pieces = {{{0, 4}, 4096, 0, 0}, {{1, 7}, 4096, 1, 0}};
  const Version* version = catalog_.make(5, 2, pieces);
  EXPECT_EQ(version->version, 5U);
  EXPECT_EQ(version->generation, 2U);
  EXPECT_EQ(version->pieces, pieces);
  EXPECT_EQ(version->paths, 3U);
  EXPECT_TRUE(version->live);
  EXPECT_EQ(version->slot, Version::kNoSlot);
}

TEST_F(CatalogTest, VersionsAreUsedAgain) {
  Version* first = catalog_.make(1, 1, at(3));
  catalog_.retire(first);
  EXPECT_EQ(released(), Places{3});
  Version* second = catalog_.make(2, 1, at(4));
  EXPECT_EQ(second, first);
  EXPECT_EQ(second->version, 2U);
  EXPECT_EQ(second->pieces, at(4));
}

TEST_F(CatalogTest, VersionsAreGivenBackWithoutAnAllocation) {
  std::vector<Version*> versions(100);
  for (auto& version : versions) version = catalog_.make(1, 1, {});
  const auto before = storage::testing::allocations();
  for (auto* version : versions) catalog_.recycle(version);
  EXPECT_EQ(storage::testing::allocations(), before);
}

TEST_F(CatalogTest, ASnapshotThatCountsRetiresTheOneBefore) {
  trusted(0, 1, 10);
  EXPECT_EQ(released(), Places{});
  catalog_.chunks[0].written.push_back(catalog_.make(2, 1, at(11)));
  trusted(0, 3, 12);
  EXPECT_EQ(released(), (Places{11, 10})) << "the one that was written meanwhile is needless, too";
}

TEST_F(CatalogTest, GradientsGoWhenEveryChunkThatTheyFeedHasTheirUpdate) {
  trusted(0, 1, 10);
  trusted(1, 1, 20);
  gradient(0, 2, 30);
  gradient(2, 2, 32);
  gradient(2, 3, 33);
  trusted(0, 2, 11);
  EXPECT_EQ(released(), (Places{10, 30})) << "chunk 1 still needs gradient 2";
  EXPECT_EQ(catalog_.floor(2), 1U);
  trusted(1, 2, 21);
  EXPECT_EQ(released(), (Places{20, 32}));
  EXPECT_EQ(catalog_.floor(2), 2U);
}

TEST_F(CatalogTest, WhatIsBeingRecordedKeepsItsPlaces) {
  Version* version = gradient(0, 2, 30);
  ++version->writing;
  catalog_.drop_gradient(0, 2);
  EXPECT_EQ(released(), Places{});
  EXPECT_TRUE(catalog_.gradients[0].held.empty());
  EXPECT_EQ(catalog_.gradients[0].ending.size(), 1U);
  catalog_.record_ended(ObjectKind::gradient, 0, version);
  EXPECT_EQ(released(), Places{30});
  EXPECT_TRUE(catalog_.gradients[0].ending.empty());
}

TEST_F(CatalogTest, GradientsOfOtherGenerationsAreDropped) {
  gradient(0, 2, 30, 1);
  gradient(0, 3, 31, 2);
  gradient(1, 2, 32, 1);
  catalog_.drop_gradients_but_of(2);
  EXPECT_EQ(released(), (Places{30, 32}));
  ASSERT_EQ(catalog_.gradients[0].held.size(), 1U);
  EXPECT_EQ(catalog_.gradients[0].held[0]->generation, 2U);
}

TEST_F(CatalogTest, ASlotIsFreeWhenNoNeededVersionHasIt) {
  EXPECT_EQ(catalog_.free_slot(0, 2), 0U);
  Version* first = gradient(0, 1, 30);
  EXPECT_EQ(catalog_.free_slot(0, 2), 1U);
  gradient(0, 2, 31);
  EXPECT_EQ(catalog_.free_slot(0, 2), Version::kNoSlot);
  ++first->writing;
  catalog_.drop_gradient(0, 1);
  EXPECT_EQ(catalog_.free_slot(0, 2), Version::kNoSlot) << "its record is still being written";
  catalog_.record_ended(ObjectKind::gradient, 0, first);
  EXPECT_EQ(catalog_.free_slot(0, 2), 0U);
}

TEST_F(CatalogTest, ACheckpointKeepsItsPlaces) {
  trusted(0, 1, 10);
  catalog_.pin(0, 1, at(10));
  catalog_.pin(0, 1, at(10));
  trusted(0, 2, 11);
  EXPECT_EQ(released(), Places{});
  ASSERT_NE(catalog_.find(0, at(10)), nullptr);
  EXPECT_EQ(catalog_.find(0, at(10))->pins, 2U);
  catalog_.unpin(0, at(10));
  EXPECT_EQ(released(), Places{});
  catalog_.unpin(0, at(10));
  EXPECT_EQ(released(), Places{10});
  EXPECT_EQ(catalog_.find(0, at(10)), nullptr);
}

TEST_F(CatalogTest, ACheckpointMayHoldWhatTheRunDoesNotKnow) {
  catalog_.pin(1, 7, at(40));
  ASSERT_NE(catalog_.find(1, at(40)), nullptr);
  EXPECT_FALSE(catalog_.find(1, at(40))->live);
  catalog_.unpin(1, at(40));
  EXPECT_EQ(released(), Places{40});
}

TEST_F(CatalogTest, RecoveryStartsFromTheOldestSnapshotThatSteppedAtAll) {
  EXPECT_EQ(catalog_.oldest_trusted(), 0U) << "no chunk has one";
  trusted(0, 5, 10);
  trusted(1, 3, 20);
  EXPECT_EQ(catalog_.oldest_trusted(), 0U);
  trusted(2, 1, 50, 4);
  EXPECT_EQ(catalog_.oldest_trusted(), 3U) << "that of the constant chunk is of every step";
  EXPECT_EQ(catalog_.needed_line().oldest, 3U);
  EXPECT_EQ(catalog_.needed_line().generations, std::vector<std::uint32_t>{4});
}

TEST_F(CatalogTest, AConstantSnapshotIsOfEveryLaterStep) {
  const Version* changing = catalog_.make(5, 1, at(1));
  const Version* constant = catalog_.make(1, 1, at(2));
  EXPECT_TRUE(catalog_.is_of(0, changing, 4) && catalog_.is_of(0, changing, 5, 5));
  EXPECT_FALSE(catalog_.is_of(0, changing, 6));
  EXPECT_FALSE(catalog_.is_of(0, changing, 1, 4));
  EXPECT_TRUE(catalog_.is_of(2, constant, 6));
  EXPECT_FALSE(catalog_.is_of(2, nullptr, 0));
}

}  // namespace
}  // namespace spillway::journal
