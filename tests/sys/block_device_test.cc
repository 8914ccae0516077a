#include "spillway/sys/block_device.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "spillway/sys/device_id.h"
#include "spillway/sys/file.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/loop_device.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

class BlockDeviceTest : public ::testing::Test {
 protected:
  /// Runs a tool quietly; false when it is missing or fails.
  static bool runs(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  testing::TemporaryDirectory directory_;
};

TEST_F(BlockDeviceTest, KnowsItsSizeAndBlocks) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB, 4096);
  REQUIRE_LOOP_DEVICE(loop);
  const BlockDevice device = examine_block_device(loop.path());
  EXPECT_EQ(device.size, 8 * MiB);
  EXPECT_EQ(device.logical_block, 4096U);
  EXPECT_GE(device.physical_block, 4096U);
  EXPECT_FALSE(device.read_only);
  EXPECT_TRUE(is_block_device(loop.path()));
  EXPECT_EQ(File(loop.path()).size(), 8 * MiB);
}

TEST_F(BlockDeviceTest, RefusesWhatIsNone) {
  EXPECT_FALSE(is_block_device(directory_.path()));
  EXPECT_ERROR(std::ignore = examine_block_device(directory_.path()), ErrorCode::bad_input, "is not a block device");
  EXPECT_ERROR(std::ignore = examine_block_device("/dev/null"), ErrorCode::bad_input, "is not a block device");
  EXPECT_ERROR(std::ignore = examine_block_device(directory_.path() / "none"), ErrorCode::bad_input, "No such file");
}

TEST_F(BlockDeviceTest, FindsNothingOnAnEmptyOne) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  EXPECT_EQ(contents_of_device(loop.path()), "");
  EXPECT_EQ(use_of_device(loop.path()), "");
}

TEST_F(BlockDeviceTest, NamesAFileSystemAndErasesIt) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  SPILLWAY_NEEDS(mkfs, runs("mkfs.ext4 -q -L data " + loop.path().string()), "no mkfs.ext4 on this machine");
  EXPECT_EQ(contents_of_device(loop.path()), "an ext4 file system 'data'");
  erase_device(loop.path());
  EXPECT_EQ(contents_of_device(loop.path()), "");
}

TEST_F(BlockDeviceTest, NamesSwapSpace) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  SPILLWAY_NEEDS(mkfs, runs("mkswap " + loop.path().string()), "no mkswap on this machine");
  EXPECT_EQ(contents_of_device(loop.path()), "a swap signature");
}

TEST_F(BlockDeviceTest, NamesAPartitionTableAndErasesIt) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  std::vector<std::byte> sector(512);
  const std::array<unsigned char, 16> linux_from_2048{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0};
  std::memcpy(&sector[446], linux_from_2048.data(), linux_from_2048.size());
  sector[510] = std::byte{0x55};
  sector[511] = std::byte{0xAA};
  File(loop.path(), {.write = true}).write(sector, 0);
  EXPECT_EQ(contents_of_device(loop.path()), "a dos partition table");
  erase_device(loop.path());
  EXPECT_EQ(contents_of_device(loop.path()), "");
}

TEST_F(BlockDeviceTest, SeesBytesOfAnUnknownKindAtBothEnds) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  const std::vector<std::byte> block(4096, std::byte{7});
  for (const Bytes at : {Bytes{700000} / 4096 * 4096, 8 * MiB - 4096}) {
    File(loop.path(), {.write = true}).write(block, at);
    EXPECT_EQ(contents_of_device(loop.path()), kUnknownContents);
    erase_device(loop.path());
    EXPECT_EQ(contents_of_device(loop.path()), "");
  }
}

TEST_F(BlockDeviceTest, SeesAMount) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  SPILLWAY_NEEDS(mkfs, runs("mkfs.ext4 -q " + loop.path().string()), "no mkfs.ext4 on this machine");
  const auto point = directory_.path() / "a mount";
  std::filesystem::create_directory(point);
  SPILLWAY_NEEDS(mount, ::mount(loop.path().c_str(), point.c_str(), "ext4", 0, nullptr) == 0, "may not mount");
  EXPECT_EQ(use_of_device(loop.path()), "it is mounted at " + point.string());
  const auto error = testing::error_of([&] { File(loop.path(), {.write = true, .exclusive = true}); });
  ::umount(point.c_str());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), EBUSY);
  EXPECT_EQ(use_of_device(loop.path()), "");
}

TEST_F(BlockDeviceTest, OnlyOneOpensItExclusively) {
  const testing::LoopDevice loop(directory_.path(), 8 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  const File first(loop.path(), {.write = true, .exclusive = true});
  EXPECT_ERROR(File(loop.path(), {.write = true, .exclusive = true}), ErrorCode::io, "EBUSY");
}

/// What the kernel would say of a drive with partitions, in a tree of its own.
class DeviceUseTest : public BlockDeviceTest {
 protected:
  void put(const std::string& path, const std::string& text) const {
    const auto file = directory_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void SetUp() override {
    loop_ = std::make_unique<testing::LoopDevice>(directory_.path(), 1 * MiB);
    REQUIRE_LOOP_DEVICE(*loop_);
    const DeviceId id = device_of(loop_->path());
    put("sys/block/sda/dev", to_string(id));
    put("sys/block/sda/sda1/partition", "1");
    put("sys/block/sda/sda1/dev", "8:1");
    std::filesystem::create_directories(directory_.path() / "sys/dev/block");
    std::filesystem::create_directory_symlink("../../block/sda", directory_.path() / "sys/dev/block" / to_string(id));
    std::filesystem::create_directory_symlink("../../block/sda/sda1", directory_.path() / "sys/dev/block/8:1");
  }
  [[nodiscard]] std::string use() const { return use_of_device(loop_->path(), directory_.path()); }

  std::unique_ptr<testing::LoopDevice> loop_;
};

TEST_F(DeviceUseTest, SeesAMountedPartition) {
  EXPECT_EQ(use(), "");
  put("proc/self/mountinfo", "36 35 8:1 / /mnt/my\\040data rw - xfs /dev/sda1 rw\n");
  EXPECT_EQ(use(), "its partition sda1 is mounted at /mnt/my data");
}

TEST_F(DeviceUseTest, SeesAMountThatHasANumberOfItsOwn) {
  put("proc/self/mountinfo", "36 35 0:44 / /data rw - btrfs /dev/sda1 rw\n");
  EXPECT_EQ(use(), "its partition sda1 is mounted at /data");
}

TEST_F(DeviceUseTest, SeesAHolder) {
  put("sys/block/sda/sda1/holders/dm-0", "");
  EXPECT_EQ(use(), "its partition sda1 is part of dm-0");
}

TEST_F(DeviceUseTest, SeesSwapping) {
  put("proc/swaps", "Filename Type Size Used Priority\n/dev/sda partition 100 0 -2\n");
  EXPECT_EQ(use(), "it is used for swapping");
}

TEST_F(DeviceUseTest, APartitionIsOnItsDrive) {
  EXPECT_EQ(whole_device({8, 1}, directory_.path()), device_of(loop_->path()));
  EXPECT_EQ(whole_device({8, 99}, directory_.path()), (DeviceId{8, 99}));
}

}  // namespace
}  // namespace spillway::sys
