// A volume on a block device: what is taken, what is refused, what is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/block_device.h"
#include "tests/needs.h"
#include "tests/storage/fixture.h"
#include "tests/sys/killing.h"
#include "tests/sys/loop_device.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
using spillway::testing::Fate;

class VolumeDevice : public ::testing::Test {
 protected:
  void SetUp() override { REQUIRE_LOOP_DEVICE(loop_); }

  [[nodiscard]] VolumeOptions options(const std::string& run = "run-a") const {
    VolumeOptions out;
    out.device = loop_.path();
    out.run = run;
    out.metadata = 2 * MiB;
    out.model = 0xABCDEF;
    return out;
  }
  [[nodiscard]] VolumeOptions again() const {
    VolumeOptions out = options();
    out.reopen = true;
    return out;
  }
  void write_at(Bytes at, std::string_view words) const {
    const sys::File device(loop_.path(), {.write = true});
    device.write({reinterpret_cast<const std::byte*>(words.data()), words.size()}, at);
    device.sync();
  }
  [[nodiscard]] std::string read_at(Bytes at, std::size_t count) const {
    std::string out(count, ' ');
    sys::File(loop_.path()).read({reinterpret_cast<std::byte*>(out.data()), count}, at);
    return out;
  }
  [[nodiscard]] bool zeros(Bytes begin, Bytes end) const {
    const std::string bytes = read_at(begin, end - begin);
    return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
  }
  [[nodiscard]] SuperblockPair superblocks() const { return read_superblocks(sys::File(loop_.path())); }
  [[nodiscard]] Superblock superblock() const { return superblocks().superblock; }

  TemporaryDirectory directory_;
  spillway::testing::LoopDevice loop_{directory_.path(), 16 * MiB + 300 * KiB, 4096};
};

TEST_F(VolumeDevice, WhatTheRunHasRecordedIsNotGivenUpUnasked) {
  { const Volume volume(options()); }
  write_at(kSuperblockExtent, "a commit");
  auto careful = options();
  careful.keep_records = true;
  EXPECT_ERROR(Volume{careful}, ErrorCode::bad_input, "holds what this run has recorded");
  EXPECT_EQ(read_at(kSuperblockExtent, 8), "a commit");
  careful.overwrite = true;
  EXPECT_NO_THROW(Volume{careful});
}

TEST_F(VolumeDevice, IsGivenBackByThoseWhoDoNotHaveItOpen) {
  {
    const Volume volume(options());
    EXPECT_ERROR(give_back(loop_.path(), "run-a"), ErrorCode::bad_input, loop_.path().string());
  }
  give_back(loop_.path(), "run-b");
  EXPECT_EQ(superblock().run, "run-a");
  give_back(loop_.path(), "run-a");
  EXPECT_TRUE(is_nobodys(superblock()));
  EXPECT_NO_THROW(Volume{options("run-b")});
}

TEST_F(VolumeDevice, IsTakenWholeInMebibytes) {
  const Volume volume(options());
  EXPECT_EQ(volume.capacity(), 13 * MiB);
  EXPECT_EQ(volume.path(), loop_.path());
  EXPECT_EQ(volume.in_file(Area::data, 0), 3 * MiB);
  EXPECT_TRUE(volume.file().direct());
  EXPECT_EQ(superblock().capacity, 13 * MiB);
  EXPECT_TRUE(superblock().ready);
  EXPECT_FALSE(superblock().prewritten);
}

TEST_F(VolumeDevice, ADirectoryAndADeviceAreTwoPaths) {
  auto both = options();
  both.directory = directory_.path();
  EXPECT_ERROR(Volume{both}, ErrorCode::bad_input, "name one of them, not both");
  both.directory.clear();
  both.device.clear();
  EXPECT_ERROR(Volume{both}, ErrorCode::bad_input, "a storage path is a directory or a block device: name one");
}

TEST_F(VolumeDevice, OneThatIsMissingOrNoneIsNamed) {
  auto wrong = options();
  wrong.device = directory_.path() / "sdz";
  EXPECT_ERROR(Volume{wrong}, ErrorCode::bad_input, "sdz");
  wrong.reopen = true;
  EXPECT_ERROR(Volume{wrong}, ErrorCode::bad_input, "sdz");
  wrong.device = directory_.path();
  EXPECT_ERROR(Volume{wrong}, ErrorCode::bad_input, "is not a block device");
}

TEST_F(VolumeDevice, TooLittleIsRefusedBeforeAnythingIsErased) {
  write_at(65536, "precious");
  auto large = options();
  large.capacity = 14 * MiB;
  large.erase = true;
  EXPECT_ERROR(Volume{large}, ErrorCode::does_not_fit,
               text(loop_.path().string(), " needs 14.0 MiB (", 14 * MiB, " bytes) beside 3.0 MiB of records; the ",
                    "device has 13.0 MiB (", 13 * MiB, " bytes) for it, of 16.3 MiB"));
  large.capacity = 0;
  large.metadata = 15 * MiB;
  EXPECT_ERROR(Volume{large}, ErrorCode::does_not_fit, "the device has 0 B");
  EXPECT_EQ(read_at(65536, 8), "precious");
  large = options();
  large.capacity = 13 * MiB;
  large.erase = true;
  EXPECT_EQ(Volume{large}.capacity(), 13 * MiB);
}

TEST_F(VolumeDevice, UnknownBytesNeedErase) {
  write_at(65536, "precious");
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input,
               text("the device ", loop_.path().string(), " cannot be used: it holds data of an unknown kind"));
  auto insisting = options();
  insisting.overwrite = true;
  EXPECT_ERROR(Volume{insisting}, ErrorCode::bad_input, "ask to erase it (--erase)");
  auto opening = again();
  opening.erase = true;
  EXPECT_ERROR(Volume{opening}, ErrorCode::bad_input, "data of an unknown kind");
  EXPECT_EQ(read_at(65536, 8), "precious");
}

TEST_F(VolumeDevice, AnotherRunsNeedsOverwriteAndEraseIsNotThat) {
  { const Volume volume(options()); }
  write_at(3 * MiB - 8, "records!");
  auto other = options("run-b");
  other.erase = true;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input,
               text(loop_.path().string(), " belongs to run 'run-a': name another device, or ask to overwrite it"));
  EXPECT_EQ(read_at(3 * MiB - 8, 8), "records!");
  other.overwrite = true;
  { const Volume volume(other); }
  EXPECT_EQ(superblock().run, "run-b");
  EXPECT_TRUE(zeros(1 * MiB, 3 * MiB));
}

TEST_F(VolumeDevice, TheSameRunStartsAnewOnIt) {
  { const Volume volume(options()); }
  write_at(1 * MiB, "record");
  auto shape = options();
  shape.metadata = 1 * MiB;
  shape.number = 1;
  shape.paths = 2;
  shape.capacity = 5 * MiB;
  EXPECT_EQ(Volume{shape}.capacity(), 14 * MiB);
  EXPECT_TRUE(zeros(1 * MiB, 2 * MiB));
  EXPECT_EQ(superblock().number, 1U);
}

TEST_F(VolumeDevice, OpenedAgainItKeepsEverything) {
  { const Volume volume(options()); }
  write_at(1 * MiB + 5, "record");
  write_at(16 * MiB - 5, "state");
  auto modest = again();
  modest.capacity = 1 * MiB;
  modest.metadata = 0;
  const Volume volume(modest);
  EXPECT_EQ(volume.capacity(), 13 * MiB);
  EXPECT_EQ(volume.metadata(), 2 * MiB);
  EXPECT_EQ(read_at(1 * MiB + 5, 6), "record");
  EXPECT_EQ(read_at(16 * MiB - 5, 5), "state");
}

TEST_F(VolumeDevice, OpenedAgainItIsTheSameOrRefused) {
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, text(loop_.path().string(), " is not a Spillway volume"));
  { const Volume volume(options()); }
  auto other = again();
  other.run = "run-b";
  other.overwrite = true;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "belongs to run 'run-a'");
  other = again();
  other.model = 0x123;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "another model (fingerprint abcdef, not 123)");
  other = again();
  other.number = 1;
  other.paths = 2;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "is path 0 of 1 of its run, not path 1 of 2");
  other = again();
  other.capacity = 14 * MiB;
  EXPECT_ERROR(Volume{other}, ErrorCode::does_not_fit, "the device has 13.0 MiB");
  Superblock longer = superblock();
  longer.capacity = 20 * MiB;
  write_superblocks(sys::File(loop_.path(), {.write = true}), longer);
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "was cut short");
}

TEST_F(VolumeDevice, OneCopyOfTheSuperblockIsEnough) {
  for (const Bytes copy : kSuperblockOffsets) {
    { const Volume volume(options()); }
    write_at(copy, "~");  // of the magic
    const Volume volume(again());
    EXPECT_NE(volume.notice().find(text("at byte ", copy, " is damaged")), std::string::npos) << volume.notice();
  }
}

TEST_F(VolumeDevice, GivenBackItIsAnybodys) {
  {
    Volume volume(options());
    volume.remove();
  }
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "holds nothing: the run that had it gave it back");
  write_at(1 * MiB, "record");
  { const Volume volume(options("run-b")); }
  EXPECT_EQ(superblock().run, "run-b");
  EXPECT_TRUE(zeros(1 * MiB, 3 * MiB));
}

TEST_F(VolumeDevice, WhatWasWrittenOnceNeedsNotBeAgain) {
  Bytes written = 0;
  auto prewriting = options();
  prewriting.prewrite = true;
  prewriting.progress = [&](Bytes done, Bytes) { written = done; };
  {
    Volume volume(prewriting);
    volume.remove();
  }
  EXPECT_EQ(written, 13 * MiB);
  EXPECT_TRUE(superblock().prewritten);
  written = 0;
  prewriting.run = "run-b";
  { const Volume volume(prewriting); }
  EXPECT_EQ(written, 0U);
  EXPECT_TRUE(superblock().prewritten);
}

TEST_F(VolumeDevice, OneInUseIsRefused) {
  const Volume volume(options());
  auto other = options("run-b");
  other.overwrite = other.erase = true;
  EXPECT_ERROR(Volume{other}, ErrorCode::bad_input, "another program uses it");
  EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "another program uses it");
}

/// The kernel may let go of a ring's file later than of the ring.
TEST_F(VolumeDevice, ClosedItIsFreeAtOnce) {
  const sys::Mapping memory(4 * MiB);
  PathOptions path_options;
  path_options.device = loop_.path();
  path_options.run = "run-a";
  for (int i = 0; i < 20; ++i) {
    Path path(path_options);
    path.register_memory(memory.span());
    path.run(transfer_of(Direction::write, memory.span(), 0));
    EXPECT_EQ(path.notice().find("path:0 is"), std::string::npos) << path.notice();
  }
}

TEST_F(VolumeDevice, SharesItsDriveByItsNumber) {
  const TemporaryDirectory table;
  PathOptions path_options;
  path_options.device = loop_.path();
  path_options.share = ShareOptions{.directory = table.path()};
  const Path path(path_options);
  EXPECT_EQ(path.notice().find("sharing"), std::string::npos) << path.notice();
  const sys::DeviceId id = sys::device_of(loop_.path());
  const auto file = std::filesystem::directory_iterator(table.path())->path().filename().string();
  EXPECT_TRUE(file.ends_with(text("-device-", id.major, "-", id.minor))) << file;
}

TEST_F(VolumeDevice, StateIsThereInTheNextLife) {
  const sys::Mapping memory(3 * MiB);
  PathOptions path_options;
  path_options.device = loop_.path();
  path_options.run = "run-a";
  path_options.metadata = 1 * MiB;
  PieceMark marks[3];
  {
    Path path(path_options);
    fill(memory.span(), 7);
    path.run(transfer_of(Direction::write, memory.span(), 11 * MiB));
    sync(path);
    for (Bytes i = 0; i < 3; ++i) marks[i] = path.mark((11 + i) * MiB);
  }
  path_options.reopen = true;
  Path path(path_options);
  for (Bytes i = 0; i < 3; ++i) path.expect((11 + i) * MiB, marks[i]);
  clear(memory.span());
  path.run(transfer_of(Direction::read, memory.span(), 11 * MiB));
  EXPECT_TRUE(is_filled(memory.span(), 7));
}

/// What a creation that was killed leaves is empty, or this run's and not ready, or whole.
TEST_F(VolumeDevice, ACreationMayBeKilledAnywhere) {
  auto creating = options();
  creating.prewrite = true;
  bool seen_empty = false, seen_unready = false;
  unsigned call = 1;
  for (;; ++call) {
    sys::erase_device(loop_.path());
    write_at(2 * MiB, "what lay there before");
    const Fate fate = spillway::testing::killed_at(call, [&] { const Volume volume(creating); });
    SPILLWAY_NEEDS(ptrace, fate != Fate::untold, "no tracing of processes on this machine");
    ASSERT_NE(fate, Fate::failed) << call;
    const SuperblockPair there = superblocks();
    if (there.state == SuperblockState::foreign) {
      EXPECT_EQ(sys::contents_of_device(loop_.path()), "") << call;
      seen_empty = true;
    } else {
      ASSERT_EQ(there.state, SuperblockState::valid) << call;
      EXPECT_EQ(there.superblock.run, "run-a");
      seen_unready = seen_unready || !there.superblock.ready;
      EXPECT_TRUE(!there.superblock.ready || zeros(1 * MiB, 16 * MiB)) << call;
    }
    if (fate == Fate::ended) break;
    if (!there.superblock.ready) EXPECT_ERROR(Volume{again()}, ErrorCode::bad_input, "");
    EXPECT_EQ(Volume{options()}.capacity(), 13 * MiB) << call;  // neither erase nor overwrite
  }
  EXPECT_TRUE(superblock().ready && seen_empty && seen_unready);
  EXPECT_GT(call, 10U);
}

/// Another run's volume is that run's with all its records, or the new one's.
TEST_F(VolumeDevice, ATakeOverMayBeKilledAnywhere) {
  auto taking = options("run-b");
  taking.overwrite = true;
  for (unsigned call = 1;; ++call) {
    sys::erase_device(loop_.path());
    { const Volume volume(options()); }
    write_at(2 * MiB, "record");
    const Fate fate = spillway::testing::killed_at(call, [&] { const Volume volume(taking); });
    SPILLWAY_NEEDS(ptrace, fate != Fate::untold, "no tracing of processes on this machine");
    ASSERT_NE(fate, Fate::failed) << call;
    const SuperblockPair there = superblocks();
    ASSERT_EQ(there.state, SuperblockState::valid) << call;
    if (there.superblock.run == "run-a") {
      EXPECT_EQ(read_at(2 * MiB, 6), "record") << call;
      EXPECT_EQ(Volume{again()}.capacity(), 13 * MiB);
    } else {
      EXPECT_TRUE(!there.superblock.ready || zeros(1 * MiB, 3 * MiB)) << call;
      EXPECT_EQ(Volume{options("run-b")}.capacity(), 13 * MiB);
    }
    if (fate == Fate::ended) break;
  }
  EXPECT_EQ(superblock().run, "run-b");
}

}  // namespace
}  // namespace spillway::storage
