#include "spillway/journal/scrub.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "spillway/journal/run_journal.h"
#include "tests/storage/pool_fixture.h"

namespace spillway::journal {
namespace {

/// A snapshot of two parts, 2.5 MiB and 4 KiB, over two paths.
class ScrubTest : public ::testing::Test {
 protected:
  ScrubTest() {
    storage::testing::fill(memory_.span(), 1);
    append(memory_.span().first(2 * MiB + 512 * KiB), 0);
    append(memory_.span().first(4 * KiB), 1);
  }
  void append(std::span<std::byte> bytes, std::uint32_t part) {
    storage::testing::Object object(bytes);
    object.write(pool_);
    for (std::size_t i = 0; i < object.places.size(); ++i) {
      const Bytes left = bytes.size() - i * MiB;
      stored_.pieces.push_back(piece_of(paths_, object.places[i], std::min<Bytes>(left, MiB), part));
    }
  }
  [[nodiscard]] Scrubbed scrubbed(std::size_t times = 1) const {
    return scrub(paths_, std::vector<ScrubObject>(times, {ObjectKind::snapshot, &stored_}));
  }

  static constexpr Bytes kStored = 2 * MiB + 516 * KiB;
  sys::Mapping memory_{3 * MiB};
  storage::testing::PoolParts parts_{{8 * MiB, 8 * MiB}};
  storage::Pool pool_{parts_.members()};
  std::vector<storage::Path*> paths_ = {&parts_.path(0), &parts_.path(1)};
  StoredObject stored_;
};

TEST_F(ScrubTest, ReadsEveryByte) {
  const Scrubbed result = scrubbed();
  EXPECT_EQ(result.bytes, kStored);
  EXPECT_TRUE(result.damage.empty());
}

TEST_F(ScrubTest, ReadsEachPlaceOnce) {
  EXPECT_EQ(scrubbed(3).bytes, kStored);
}

TEST_F(ScrubTest, SaysWhichPieceIsNotWhatWasWritten) {
  ++stored_.pieces[1].checksum;
  const Scrubbed result = scrubbed();
  EXPECT_EQ(result.bytes, kStored);
  ASSERT_EQ(result.damage.size(), 1U);
  EXPECT_EQ(result.damage[0].piece.place, stored_.pieces[1].place);
  EXPECT_EQ(result.damage[0].first, MiB);
  EXPECT_EQ(result.damage[0].of.stored, &stored_);
  EXPECT_NE(result.damage[0].reason.find("is corrupt"), std::string::npos) << result.damage[0].reason;
}

TEST_F(ScrubTest, APieceOfTheSecondPartCountsFromThePartsStart) {
  ++stored_.pieces.back().checksum;
  const Scrubbed result = scrubbed();
  ASSERT_EQ(result.damage.size(), 1U);
  EXPECT_EQ(result.damage[0].first, 0U);
  EXPECT_EQ(result.damage[0].piece.part, 1U);
}

TEST_F(ScrubTest, WhatADriveCannotGiveIsDamaged) {
  const auto place = stored_.pieces[0].place;
  parts_.faults(place.path).fail(sys::Operation::read, storage::testing::kFirstExtent + place.piece * MiB, EIO);
  const Scrubbed result = scrubbed();
  ASSERT_EQ(result.damage.size(), 1U);
  EXPECT_EQ(result.damage[0].piece.place, place);
}

TEST_F(ScrubTest, AnImpossibleLengthIsDamageToo) {
  stored_.pieces[0].bytes = 7;
  EXPECT_EQ(scrubbed().damage.size(), 1U);
}

}  // namespace
}  // namespace spillway::journal
