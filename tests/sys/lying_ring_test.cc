#include "spillway/sys/lying_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "spillway/sys/mapping.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

constexpr Bytes kBlock = 4 * KiB;

class LyingRingTest : public ::testing::Test {
 protected:
  LyingRingTest() {
    file_.reserve(16 * kBlock);
    ring_ = lying(make_thread_ring, lies_)(file_, 4);
  }

  /// Moves one block and waits; every piece says that all of it was moved.
  void move(Operation operation, Bytes offset) {
    ring_->submit({operation, memory_.span().data(), static_cast<std::uint32_t>(kBlock), offset, 1});
    std::vector<Completion> out(8);
    std::size_t count = 0;
    while (count == 0) count = ring_->wait(out);
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(out[0].result, static_cast<int>(kBlock));
  }
  void write(char value, Bytes block) {
    std::ranges::fill(memory_.span(), static_cast<std::byte>(value));
    move(Operation::write, block * kBlock);
  }
  char read(Bytes block) {
    std::ranges::fill(memory_.span(), std::byte{'?'});
    move(Operation::read, block * kBlock);
    return static_cast<char>(memory_.span()[7]);
  }
  [[nodiscard]] char byte_of(Bytes block) const {
    std::vector<std::byte> bytes(kBlock);
    file_.read(bytes, block * kBlock);
    return static_cast<char>(bytes[7]);
  }

  testing::TemporaryDirectory directory_;
  File file_{directory_.path() / "file", {.write = true, .create = true}};
  Mapping memory_{kBlock};
  std::shared_ptr<Lies> lies_ = std::make_shared<Lies>();
  std::unique_ptr<Ring> ring_;
};

TEST_F(LyingRingTest, LostWriteLeavesTheFile) {
  write('a', 3);
  lies_->add({.lie = Lie::lost, .first = 3 * kBlock, .last = 4 * kBlock});
  write('b', 3);
  write('c', 4);
  EXPECT_EQ(byte_of(3), 'a');
  EXPECT_EQ(byte_of(4), 'c');
  write('d', 3);
  EXPECT_EQ(byte_of(3), 'd') << "one write was to be lost";
  EXPECT_EQ(lies_->count(), 1U);
}

TEST_F(LyingRingTest, MisdirectedPiecesMoveElsewhere) {
  write('a', 3);
  lies_->add({.lie = Lie::misdirected, .operation = Operation::write, .distance = 2 * kBlock});
  write('b', 3);
  EXPECT_EQ(byte_of(3), 'a');
  EXPECT_EQ(byte_of(5), 'b');
  lies_->add({.lie = Lie::misdirected, .operation = Operation::read, .distance = ~Bytes{0} - 2 * kBlock + 1});
  EXPECT_EQ(read(5), 'a');
}

TEST_F(LyingRingTest, LateWriteComesOverLaterOnes) {
  lies_->add({.lie = Lie::late, .distance = 1});
  write('a', 3);
  EXPECT_EQ(lies_->late_writes(), 1U);
  write('b', 3);
  EXPECT_EQ(byte_of(3), 'b');
  EXPECT_EQ(read(3), 'a');
  EXPECT_EQ(lies_->late_writes(), 0U);
}

TEST_F(LyingRingTest, StaleReadGivesAnOlderImage) {
  write('a', 3);
  const auto image = directory_.path() / "image";
  std::filesystem::copy_file(file_.path(), image);
  write('b', 3);
  lies_->add({.lie = Lie::stale, .operation = Operation::read, .skip = 1, .times = 1, .image = image});
  EXPECT_EQ(read(3), 'b');
  EXPECT_EQ(read(3), 'a');
  EXPECT_EQ(read(3), 'b');
}

TEST_F(LyingRingTest, LostReadLeavesTheMemory) {
  write('a', 3);
  lies_->add({.lie = Lie::lost, .operation = Operation::read});
  EXPECT_EQ(read(3), '?');
  EXPECT_EQ(read(3), 'a');
}

}  // namespace
}  // namespace spillway::sys
