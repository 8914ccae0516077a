#include "spillway/storage/raw_device.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstdlib>
#include <string_view>

#include "spillway/sys/mapping.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/loop_device.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

class RawDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { REQUIRE_LOOP_DEVICE(loop_); }
  void write(std::string_view words, Bytes at) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
    const sys::File device(loop_.path(), {.write = true});
    device.write({bytes, words.size()}, at);
    device.sync();
  }
  [[nodiscard]] bool make_file_system() const {
    return std::system(("mkfs.ext4 -q " + loop_.path().string() + " >/dev/null 2>&1").c_str()) == 0;
  }

  spillway::testing::TemporaryDirectory directory_;
  spillway::testing::LoopDevice loop_{directory_.path(), 8 * MiB, 4096};
};

TEST_F(RawDeviceTest, AnEmptyOneIsReadAndWritten) {
  const sys::File device = open_block_device(loop_.path(), false);
  EXPECT_TRUE(device.direct()) << device.direct_refusal();
  EXPECT_EQ(device.size(), 8 * MiB);
  const sys::Mapping memory(8 * KiB);
  memory.span()[0] = std::byte{42};
  device.write(memory.span().first(4 * KiB), 3 * MiB);
  device.read(memory.span().last(4 * KiB), 3 * MiB);
  EXPECT_EQ(memory.span()[4 * KiB], std::byte{42});
}

TEST_F(RawDeviceTest, OneWithAFileSystemIsRefusedUntilItMayBeErased) {
  SPILLWAY_NEEDS(mkfs, make_file_system(), "no mkfs.ext4 on this machine");
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), false), ErrorCode::bad_input,
               "it holds an ext4 file system; name another device, or ask to erase it (--erase)");
  std::ignore = open_block_device(loop_.path(), true);
  std::ignore = open_block_device(loop_.path(), false);
}

TEST_F(RawDeviceTest, OneWithUnknownBytesIsRefused) {
  write("precious", 65536);
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), false), ErrorCode::bad_input, "data of an unknown kind");
  std::ignore = open_block_device(loop_.path(), true);
  std::ignore = open_block_device(loop_.path(), false);
}

TEST_F(RawDeviceTest, AVolumeIsLeftAsItIs) {
  for (const bool erase : {false, true}) {
    write("SPILLWAY", 0);
    const sys::File device = open_block_device(loop_.path(), erase);
    const sys::Mapping memory(4 * KiB);
    device.read(memory.span(), 0);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(memory.span().data()), 8), "SPILLWAY");
  }
}

TEST_F(RawDeviceTest, AMountedOneIsNeverErased) {
  SPILLWAY_NEEDS(mkfs, make_file_system(), "no mkfs.ext4 on this machine");
  const auto point = directory_.path() / "mounted";
  std::filesystem::create_directory(point);
  SPILLWAY_NEEDS(mount, ::mount(loop_.path().c_str(), point.c_str(), "ext4", 0, nullptr) == 0, "may not mount");
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), true), ErrorCode::bad_input,
               "it is mounted at " + point.string());
  ::umount(point.c_str());
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), false), ErrorCode::bad_input, "an ext4 file system");
}

TEST_F(RawDeviceTest, OneThatAnotherRunHasIsRefused) {
  const sys::File first = open_block_device(loop_.path(), false);
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), true), ErrorCode::bad_input, "another program uses it");
}

TEST_F(RawDeviceTest, OneCopyOfASuperblockIsAVolume) {
  write("SPILLWAY", 512 * KiB);
  std::ignore = open_block_device(loop_.path(), false);
  write("SPILLWAY", 512 * KiB + 8);
  write(std::string_view("\0", 1), 512 * KiB);
  EXPECT_ERROR(std::ignore = open_block_device(loop_.path(), false), ErrorCode::bad_input, "data of an unknown kind");
}

TEST_F(RawDeviceTest, OneOfLargeBlocksIsRefused) {
  const spillway::testing::TemporaryDirectory directory;
  const spillway::testing::LoopDevice large(directory.path(), 8 * MiB, 16384);
  SPILLWAY_NEEDS(loop, large.ready(), "no devices of such blocks: " << large.reason());
  EXPECT_ERROR(
      std::ignore = open_block_device(large.path(), true), ErrorCode::bad_input,
      "its blocks have 16.0 KiB, more than 4.0 KiB; name another device, or a directory of a file system on it");
}

TEST_F(RawDeviceTest, ADirectoryIsNoDevice) {
  EXPECT_ERROR(std::ignore = open_block_device(directory_.path(), false), ErrorCode::bad_input,
               "is not a block device");
}

}  // namespace
}  // namespace spillway::storage
