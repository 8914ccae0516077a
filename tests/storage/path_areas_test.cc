// Metadata beside data, and data that a later process finds again.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

/// Where the extents begin in the file when there is 1 MiB of metadata.
constexpr Bytes kData = 2 * MiB;

class PathAreas : public ::testing::Test {
 protected:
  PathAreas() { open(); }

  [[nodiscard]] PathOptions options() const {
    PathOptions out = options_in(directory_.path(), 8 * MiB);
    out.metadata = 1;
    out.model = 5;
    return out;
  }
  void open(bool reopen = false) {
    PathOptions how = options();
    how.reopen = reopen;
    path_.reset();
    path_ = std::make_unique<Path>(how, sys::faulty(sys::make_ring, faults_));
  }
  static Transfer metadata(Direction direction, std::span<std::byte> memory, Bytes offset, std::string_view what = "") {
    Transfer transfer = transfer_of(direction, memory, offset, what);
    transfer.area = Area::metadata;
    return transfer;
  }
  void write(Bytes offset, Bytes bytes, std::uint64_t seed) {
    fill(arena_.span().first(bytes), seed);
    path_->run(transfer_of(Direction::write, arena_.span().first(bytes), offset));
  }
  void read(Bytes offset, Bytes bytes) {
    clear(arena_.span().first(bytes));
    path_->run(transfer_of(Direction::read, arena_.span().first(bytes), offset, "weight"));
  }
  void flip(Bytes at) const {
    const sys::File file(path_->volume(), {.write = true});
    std::byte byte{};
    file.read({&byte, 1}, at);
    byte ^= std::byte{4};
    file.write({&byte, 1}, at);
    file.sync();
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{4 * MiB};
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  std::unique_ptr<Path> path_;
};

TEST_F(PathAreas, SaysHowLargeTheyAre) {
  EXPECT_EQ(path_->capacity(), 8 * MiB);
  EXPECT_EQ(path_->metadata(), 1 * MiB);
}

TEST_F(PathAreas, NewMetadataIsZeros) {
  const auto memory = arena_.span().first(1 * MiB);
  fill(memory, 1);
  path_->run(metadata(Direction::read, memory, 0));
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(PathAreas, MetadataLiesApartAndIsNotVerified) {
  const auto memory = arena_.span().first(12 * KiB);
  write(0, 1 * MiB, 1);
  fill(memory, 2);
  path_->run(metadata(Direction::write, memory, 4 * KiB));
  flip(1 * MiB + 4 * KiB + 7);
  clear(memory);
  path_->run(metadata(Direction::read, memory, 4 * KiB));
  memory[7] ^= std::byte{4};
  EXPECT_TRUE(is_filled(memory, 2));
  read(0, 1 * MiB);
  EXPECT_TRUE(is_filled(arena_.span().first(1 * MiB), 1));
  EXPECT_EQ(path_->counters().written, 1 * MiB + 12 * KiB);
}

TEST_F(PathAreas, RefusesMalformedMetadata) {
  const auto memory = arena_.span();
  EXPECT_ERROR(path_->run(metadata(Direction::write, memory.first(4 * KiB), 512, "record")), ErrorCode::internal,
               "record of 4096 bytes at offset 512: its offset is not aligned");
  EXPECT_ERROR(path_->run(metadata(Direction::write, memory.first(2 * MiB), 0)), ErrorCode::internal, "at most 1 MiB");
  EXPECT_ERROR(path_->run(metadata(Direction::write, memory.first(8 * KiB), 1 * MiB - 4 * KiB)), ErrorCode::internal,
               "beyond the volume's metadata");
  path_->run(metadata(Direction::write, memory.first(4 * KiB), 1 * MiB - 4 * KiB));
}

TEST_F(PathAreas, FailedMetadataIsNamedWithItsPlaceInTheFile) {
  faults_->fail(sys::Operation::write, 1 * MiB + 8 * KiB, ENOSPC);
  const auto memory = arena_.span().first(4 * KiB);
  EXPECT_ERROR(path_->run(metadata(Direction::write, memory, 8 * KiB, "record of chunk 4")), ErrorCode::io,
               text("record of chunk 4: writing 4.0 KiB at byte ", 1 * MiB + 8 * KiB));
  faults_->shorten(sys::Operation::write, 1 * MiB + 8 * KiB, 512, 3);
  path_->run(metadata(Direction::write, memory, 8 * KiB));
}

TEST_F(PathAreas, MarksTellWhatWasWrittenLast) {
  EXPECT_EQ(path_->mark(0), PieceMark{});
  write(0, 1 * MiB + 8 * KiB, 1);
  const PieceMark first = path_->mark(0);
  EXPECT_EQ(first.bytes, 1 * MiB);
  EXPECT_NE(first.checksum, 0U);
  EXPECT_EQ(path_->mark(1 * MiB).bytes, 8 * KiB);
  write(0, 1 * MiB, 2);
  EXPECT_NE(path_->mark(0), first);
  write(0, 1 * MiB, 1);
  EXPECT_EQ(path_->mark(0), first);
  faults_->fail(sys::Operation::write, kData, EIO);
  EXPECT_ERROR(write(0, 1 * MiB, 2), ErrorCode::io, "EIO");
  EXPECT_EQ(path_->mark(0), PieceMark{});
}

TEST_F(PathAreas, MarksAreThereWhenDoneIsCalled) {
  struct Seen {
    Path* path;
    PieceMark mark;
  } seen{path_.get(), {}};
  auto transfer = transfer_of(Direction::write, arena_.span().first(1 * MiB), 2 * MiB);
  transfer.context = &seen;
  transfer.done = [](void* context, std::uint64_t, const std::exception_ptr&) noexcept {
    auto& self = *static_cast<Seen*>(context);
    self.mark = self.path->mark(2 * MiB);
  };
  path_->start(transfer);
  path_->drain();
  EXPECT_EQ(seen.mark, path_->mark(2 * MiB));
  EXPECT_EQ(seen.mark.bytes, 1 * MiB);
}

TEST_F(PathAreas, ReopenedDataIsVerifiedAgainstWhatIsExpected) {
  write(0, 2 * MiB + 4 * KiB, 3);
  const PieceMark marks[] = {path_->mark(0), path_->mark(1 * MiB), path_->mark(2 * MiB)};
  open(true);
  EXPECT_ERROR(read(0, 1 * MiB), ErrorCode::internal, "where 0 bytes were written");
  for (Bytes piece = 0; piece < 3; ++piece) path_->expect(piece * MiB, marks[piece]);
  read(0, 2 * MiB + 4 * KiB);
  EXPECT_TRUE(is_filled(arena_.span().first(2 * MiB + 4 * KiB), 3));
  flip(kData + 1 * MiB + 77);
  EXPECT_ERROR(read(0, 2 * MiB + 4 * KiB), ErrorCode::corrupt, text("at byte ", kData + 1 * MiB));
}

TEST_F(PathAreas, AStalePieceIsFoundByTheMarkOfItsSuccessor) {
  write(0, 1 * MiB, 1);
  write(1 * MiB, 1 * MiB, 2);
  const PieceMark elsewhere = path_->mark(1 * MiB);
  open(true);
  path_->expect(0, elsewhere);
  EXPECT_ERROR(read(0, 1 * MiB), ErrorCode::corrupt, "not what was written");
}

TEST_F(PathAreas, AMarkWithoutAChecksumIsNotVerified) {
  write(0, 1 * MiB, 1);
  open(true);
  path_->expect(0, {0, 1 * MiB});
  flip(kData);
  read(0, 1 * MiB);
  EXPECT_ERROR(read(0, 512 * KiB), ErrorCode::internal, "where 1048576 bytes were written");
}

TEST_F(PathAreas, RefusesMarksOfNoPiece) {
  EXPECT_ERROR(path_->expect(4 * KiB, {}), ErrorCode::internal, "no piece of 0 bytes at offset 4096");
  EXPECT_ERROR(path_->expect(8 * MiB, {}), ErrorCode::internal, "offset 8388608");
  EXPECT_ERROR(path_->expect(0, {1, 2 * MiB}), ErrorCode::internal, "no piece of 2097152 bytes");
  EXPECT_ERROR(path_->expect(0, {1, 100}), ErrorCode::internal, "no piece of 100 bytes");
  EXPECT_ERROR(std::ignore = path_->mark(8 * MiB), ErrorCode::internal, "offset 8388608");
}

TEST_F(PathAreas, ADamagedSuperblockIsInTheNotice) {
  flip(100);
  open(true);
  EXPECT_NE(path_->notice().find("byte 0 is damaged"), std::string::npos) << path_->notice();
}

}  // namespace
}  // namespace spillway::storage
