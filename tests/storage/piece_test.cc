#include "spillway/storage/piece.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace spillway::storage {
namespace {

Piece make_piece() {
  return {.bytes = 4 * kTransferAlignment};
}

TEST(Piece, IsWholeWhenAllOfItWasMoved) {
  auto piece = make_piece();
  EXPECT_EQ(judge(piece, static_cast<std::int32_t>(piece.bytes)), Verdict::whole);
}

TEST(Piece, GoesOnFromTheLastAlignedByteThatWasMoved) {
  auto piece = make_piece();
  EXPECT_EQ(judge(piece, kTransferAlignment + 5), Verdict::again);
  EXPECT_EQ(piece.moved, kTransferAlignment);
  EXPECT_EQ(judge(piece, 3 * kTransferAlignment - 1), Verdict::again);
  EXPECT_EQ(piece.moved, 3 * kTransferAlignment);
  EXPECT_EQ(judge(piece, kTransferAlignment), Verdict::whole);
}

TEST(Piece, FailsWithAnErrorAndStallsAtAnEnd) {
  auto piece = make_piece();
  EXPECT_EQ(judge(piece, -EIO), Verdict::failed);
  EXPECT_EQ(judge(piece, 0), Verdict::stalled);
}

TEST(Piece, FailsWhenItIsInterruptedWithoutEnd) {
  auto piece = make_piece();
  for (std::uint32_t i = 1; i < kMostFruitless; ++i) ASSERT_EQ(judge(piece, -EINTR), Verdict::again);
  EXPECT_EQ(judge(piece, -EAGAIN), Verdict::failed);
}

TEST(Piece, StallsWhenNoAlignedByteIsMovedWithoutEnd) {
  auto piece = make_piece();
  for (std::uint32_t i = 1; i < kMostFruitless; ++i) ASSERT_EQ(judge(piece, 1), Verdict::again);
  EXPECT_EQ(judge(piece, 1), Verdict::stalled);
}

TEST(Piece, ForgetsInterruptionsWhenItMoves) {
  auto piece = make_piece();
  for (std::uint32_t i = 1; i < kMostFruitless; ++i) ASSERT_EQ(judge(piece, -EINTR), Verdict::again);
  ASSERT_EQ(judge(piece, kTransferAlignment), Verdict::again);
  EXPECT_EQ(judge(piece, -EINTR), Verdict::again);
}

}  // namespace
}  // namespace spillway::storage
