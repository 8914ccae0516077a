// Volumes that a later process opens again: what is kept, what is refused, what starting anew erases.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "tests/needs.h"
#include "tests/storage/fixture.h"
#include "tests/sys/killing.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
using spillway::testing::Fate;

class VolumeReopen : public ::testing::Test {
 protected:
  [[nodiscard]] VolumeOptions options() const {
    VolumeOptions out;
    out.directory = directory_.path();
    out.capacity = 4 * MiB;
    out.run = "run-a";
    out.metadata = 2 * MiB;
    out.model = 0xABCDEF;
    out.number = 1;
    out.paths = 3;
    return out;
  }
  [[nodiscard]] VolumeOptions again() const {
    VolumeOptions out = options();
    out.reopen = true;
    return out;
  }
  [[nodiscard]] std::filesystem::path file() const { return directory_.path() / kVolumeName; }
  void write_at(Bytes at, std::string_view text) const {
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(at));
    stream << text;
  }
  [[nodiscard]] std::vector<std::byte> read_at(Bytes at, Bytes count) const {
    std::vector<std::byte> bytes(count);
    sys::File(file()).read(bytes, at);
    return bytes;
  }
  [[nodiscard]] bool zeros(Bytes begin, Bytes end) const {
    return std::ranges::all_of(read_at(begin, end - begin), [](std::byte byte) { return byte == std::byte{0}; });
  }
  void encode_both(const Superblock& superblock) const {
    write_superblocks(sys::File(file(), {.write = true}), superblock);
  }
  [[nodiscard]] Superblock superblock() const { return read_superblocks(sys::File(file())).superblock; }

  TemporaryDirectory directory_;
};

TEST_F(VolumeReopen, AreasFollowTheSuperblocks) {
  const Volume volume(options());
  EXPECT_EQ(std::filesystem::file_size(file()), 7 * MiB);
  EXPECT_EQ(volume.in_file(Area::metadata, 4 * KiB), 1 * MiB + 4 * KiB);
  EXPECT_EQ(volume.in_file(Area::data, 1 * MiB), 4 * MiB);
  const Superblock made = superblock();
  EXPECT_EQ(made.metadata, 2 * MiB);
  EXPECT_EQ(made.model, 0xABCDEFU);
  EXPECT_EQ(made.number, 1U);
  EXPECT_EQ(made.paths, 3U);
  EXPECT_TRUE(made.ready);
  EXPECT_FALSE(made.prewritten);
}

TEST_F(VolumeReopen, KeepsEverything) {
  { const Volume volume(options()); }
  write_at(1 * MiB + 5, "record");
  write_at(3 * MiB + 5, "state");
  const auto made = std::filesystem::last_write_time(file());
  auto modest = again();
  modest.capacity = 1 * MiB;
  modest.metadata = 0;
  const Volume volume(modest);
  EXPECT_EQ(volume.capacity(), 4 * MiB);
  EXPECT_EQ(volume.metadata(), 2 * MiB);
  EXPECT_EQ(volume.notice(), "");
  EXPECT_EQ(std::filesystem::last_write_time(file()), made);
}

TEST_F(VolumeReopen, RefusesWhatItCannotGoOnWith) {
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "is missing");
  { const Volume volume(options()); }
  auto other = again();
  other.run = "run-b";
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "belongs to run 'run-a'");
  other.overwrite = true;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "belongs to run 'run-a'");
  other = again();
  other.model = 0x123;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "another model (fingerprint abcdef, not 123)");
  other = again();
  other.number = 0;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "is path 1 of 3 of its run, not path 0 of 3");
  other = again();
  other.paths = 2;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "is path 1 of 3 of its run, not path 1 of 2");
  other = again();
  other.metadata = 3 * MiB;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "has room for 2.0 MiB of records, not for 3.0 MiB");
  EXPECT_EQ(Volume{again()}.capacity(), 4 * MiB);
}

TEST_F(VolumeReopen, RefusesAnotherShard) {
  VolumeOptions shard = options();
  shard.shard = 2;
  shard.world = 4;
  const auto file = directory_.path() / "spillway.shard-2-of-4.volume";
  { const Volume volume(shard); }
  EXPECT_TRUE(std::filesystem::exists(file) && !std::filesystem::exists(this->file()));
  EXPECT_EQ(read_superblocks(sys::File(file)).superblock.format, kShardFormat) << "which older builds refuse";
  shard.reopen = true;
  EXPECT_EQ(Volume{shard}.path(), file);
  VolumeOptions other = shard;
  other.world = 5;
  std::filesystem::copy_file(file, directory_.path() / volume_name(2, 5));
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "is shard 2 of 4 of its run, not shard 2 of 5");
  other = shard;
  other.shard = 1;
  std::filesystem::copy_file(file, directory_.path() / volume_name(1, 4));
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "is shard 2 of 4 of its run, not shard 1 of 4");
}

TEST_F(VolumeReopen, RefusesDamageFormatsAndByteOrders) {
  { const Volume volume(options()); }
  const Superblock good = superblock();
  Superblock other = good;
  other.format = 4;
  encode_both(other);
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input,
               "has format 4, which this build does not read (it reads 2 and 3)");
  other = good;
  other.ready = false;
  encode_both(other);
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "was being prepared");
  other = good;
  other.piece_size = 2 * MiB;
  encode_both(other);
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "has pieces of 2097152 bytes");
  encode_both(good);
  for (const Bytes copy : kSuperblockOffsets) write_at(copy + 8, "\1\2\3\4");
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "other byte order");
  encode_both(good);
  for (const Bytes copy : kSuperblockOffsets) write_at(copy + 100, "~");
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "has a damaged superblock");
  for (const Bytes copy : kSuperblockOffsets) write_at(copy, "~");
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "is not a Spillway volume");
  encode_both(good);
  std::filesystem::resize_file(file(), 6 * MiB);
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, text("was cut short: it has ", 6 * MiB, " bytes of ", 7 * MiB));
}

TEST_F(VolumeReopen, RefusesAVolumeInUse) {
  const Volume volume(options());
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "in use by another run");
}

TEST_F(VolumeReopen, OneDamagedCopyIsSurvivedAndSpokenOf) {
  { const Volume volume(options()); }
  for (const Bytes copy : kSuperblockOffsets) {
    write_at(copy + 100, "~");
    {
      const Volume volume(again());
      EXPECT_NE(volume.notice().find(text("at byte ", copy, " is damaged")), std::string::npos) << volume.notice();
    }
    { const Volume anew(options()); }
    EXPECT_EQ(read_superblocks(sys::File(file())).damage, "");
  }
}

TEST_F(VolumeReopen, StartingAnewErasesTheRecords) {
  { const Volume volume(options()); }
  write_at(1 * MiB + 5, "record");
  write_at(3 * MiB - 6, "record");
  const Volume volume(options());
  EXPECT_TRUE(zeros(1 * MiB, 3 * MiB));
  EXPECT_TRUE(superblock().ready);
}

TEST_F(VolumeReopen, StartingAnewTakesTheNewShape) {
  auto large = options();
  large.capacity = 8 * MiB;
  { const Volume volume(large); }
  auto small = options();
  small.metadata = 1 * MiB;
  small.number = 0;
  small.paths = 1;
  small.model = 7;
  { const Volume volume(small); }
  EXPECT_EQ(std::filesystem::file_size(file()), 11 * MiB);
  small.reopen = true;
  const Volume volume(small);
  EXPECT_EQ(volume.capacity(), 4 * MiB);
  EXPECT_EQ(volume.metadata(), 1 * MiB);
}

TEST_F(VolumeReopen, AnInterruptedPreparationIsDoneAgain) {
  { const Volume volume(options()); }
  Superblock half = superblock();
  half.ready = false;
  encode_both(half);
  write_at(2 * MiB, "record");
  { const Volume volume(options()); }
  EXPECT_TRUE(zeros(1 * MiB, 3 * MiB));
  EXPECT_EQ(Volume{again()}.notice(), "");
}

/// A creation: there is no volume, or it is whole.
TEST_F(VolumeReopen, ACreationMayBeKilledAnywhere) {
  bool seen_none = false;
  for (unsigned call = 1;; ++call) {
    std::filesystem::remove(file());
    const Fate fate = spillway::testing::killed_at(call, [&] { const Volume volume(options()); });
    SPILLWAY_NEEDS(ptrace, fate != Fate::untold, "no tracing of processes on this machine");
    ASSERT_NE(fate, Fate::failed) << call;
    seen_none = seen_none || !std::filesystem::exists(file());
    if (std::filesystem::exists(file())) {
      EXPECT_EQ(Volume{again()}.capacity(), 4 * MiB) << call;
      EXPECT_TRUE(zeros(1 * MiB, 3 * MiB)) << call;
    }
    if (fate == Fate::ended) break;
    EXPECT_EQ(Volume{options()}.capacity(), 4 * MiB) << call;
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "spillway.volume.new")) << call;
  }
  EXPECT_TRUE(seen_none && std::filesystem::exists(file()));
}

/// Starting anew: the records of before are all there, or none is and the volume says so.
TEST_F(VolumeReopen, StartingAnewMayBeKilledAnywhere) {
  bool seen_unready = false;
  for (unsigned call = 1;; ++call) {
    { const Volume volume(options()); }
    write_at(1 * MiB + 5, "record");
    write_at(3 * MiB - 6, "record");
    const Fate fate = spillway::testing::killed_at(call, [&] { const Volume volume(options()); });
    SPILLWAY_NEEDS(ptrace, fate != Fate::untold, "no tracing of processes on this machine");
    ASSERT_NE(fate, Fate::failed) << call;
    const bool kept = !zeros(1 * MiB, 1 * MiB + 11) && !zeros(3 * MiB - 6, 3 * MiB);
    if (superblock().ready) {
      EXPECT_TRUE(kept || zeros(1 * MiB, 3 * MiB)) << call;
    } else {
      EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "was being prepared when that was interrupted");
      seen_unready = true;
    }
    if (fate == Fate::ended) break;
  }
  EXPECT_TRUE(seen_unready && zeros(1 * MiB, 3 * MiB));
}

TEST_F(VolumeReopen, AnOlderFormatOfTheSameRunIsMadeAnewANewerOneIsNot) {
  { const Volume volume(options()); }
  Superblock other = superblock();
  other.format = 4;
  encode_both(other);
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "has format 4");
  other.format = 1;
  encode_both(other);
  { const Volume volume(options()); }
  EXPECT_EQ(superblock().format, kVolumeFormat);
  other.run = "run-b";
  encode_both(other);
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "has format 1");
}

/// Whether the file system would have to convert any of the file's space at its first write; nothing when it does not
/// tell.
std::optional<bool> has_unwritten_space(const std::filesystem::path& path) {
  constexpr std::size_t kExtents = 64;
  std::vector<std::byte> memory(sizeof(fiemap) + kExtents * sizeof(fiemap_extent));
  auto* map = reinterpret_cast<fiemap*>(memory.data());
  map->fm_length = FIEMAP_MAX_OFFSET;
  map->fm_flags = FIEMAP_FLAG_SYNC;
  map->fm_extent_count = kExtents;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int result = ::ioctl(fd, FS_IOC_FIEMAP, map);
  ::close(fd);
  if (result != 0) return std::nullopt;
  return std::any_of(map->fm_extents, map->fm_extents + map->fm_mapped_extents,
                     [](const fiemap_extent& extent) { return (extent.fe_flags & FIEMAP_EXTENT_UNWRITTEN) != 0; });
}

class VolumePrewrite : public VolumeReopen {
 protected:
  VolumeOptions prewriting() {
    VolumeOptions out = options();
    out.prewrite = true;
    out.progress = [this](Bytes done, Bytes of) { steps_.emplace_back(done, of); };
    return out;
  }
  std::vector<std::pair<Bytes, Bytes>> steps_;
};

TEST_F(VolumePrewrite, WritesEveryByteOnceAndTellsHowFarItIs) {
  { const Volume volume(prewriting()); }
  ASSERT_EQ(steps_.size(), 4U);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    EXPECT_EQ(steps_[i], (std::pair<Bytes, Bytes>{(i + 1) * MiB, 4 * MiB}));
  }
  EXPECT_TRUE(superblock().prewritten);
  EXPECT_TRUE(zeros(1 * MiB, 7 * MiB));
  { const Volume volume(prewriting()); }
  EXPECT_EQ(steps_.size(), 4U);
}

TEST_F(VolumePrewrite, LeavesTheFileSystemNothingToConvert) {
  { const Volume volume(options()); }
  const auto without = has_unwritten_space(file());
  { const Volume volume(prewriting()); }  // of a volume that is there, too
  EXPECT_EQ(steps_.size(), 4U);
  const auto with = has_unwritten_space(file());
  SPILLWAY_NEEDS(holes, without && *without, "this file system does not tell unwritten space from written");
  ASSERT_TRUE(with);
  EXPECT_FALSE(*with);
}

TEST_F(VolumePrewrite, WhatTheProgressThrowsEndsItAndLeavesNothing) {
  auto stopped = prewriting();
  stopped.progress = [](Bytes, Bytes) { throw Error(ErrorCode::internal, "stopped by hand"); };
  EXPECT_ERROR(Volume{stopped}, ErrorCode::internal, "stopped by hand");
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace spillway::storage
