#include "spillway/journal/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/journal/samples.h"

namespace spillway::journal {
namespace {

using testing::kIdentity;
using testing::some_pieces;

TEST(RecordTest, ReturnsWhatWentIn) {
  for (const std::size_t count : {1, 2, 100}) {
    std::vector<std::byte> slot(4096, std::byte{9});
    const RecordHead in{ObjectKind::gradient, 5, 3, 1u << 20, static_cast<std::uint32_t>(count - 1)};
    encode(in, some_pieces(count), kIdentity, slot);
    RecordHead out;
    std::vector<Piece> got;
    ASSERT_EQ(decode(slot, kIdentity, out, got), SlotState::whole);
    EXPECT_EQ(got, some_pieces(count));
    EXPECT_EQ(out.kind, in.kind);
    EXPECT_EQ(out.object, in.object);
    EXPECT_EQ(out.generation, in.generation);
    EXPECT_EQ(out.version, in.version);
    EXPECT_EQ(out.slot, in.slot);
  }
}

TEST(RecordTest, EveryBitIsGuarded) {
  std::vector<std::byte> slot(4096);
  encode({ObjectKind::snapshot, 5, 3, 8}, some_pieces(20), kIdentity, slot);
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
  encode({ObjectKind::snapshot, 0, 1, 1}, some_pieces(1), kIdentity + 1, slot);
  EXPECT_EQ(decode(slot, kIdentity, head, got), SlotState::foreign);
  std::fill(slot.begin(), slot.begin() + 512, std::byte{0});
  slot[3000] = std::byte{1};
  EXPECT_EQ(decode(slot, kIdentity, head, got), SlotState::damaged);
}

}  // namespace
}  // namespace spillway::journal
