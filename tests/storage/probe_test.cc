#include "spillway/storage/probe.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>

#include "spillway/sys/direct_io.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mounts.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/loop_device.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

/// ext4 on a loop device.
class Mounted {
 public:
  Mounted(const spillway::testing::LoopDevice& device, const std::filesystem::path& point) : point_(point) {
    const std::string command = "mkfs.ext4 -q " + device.path().string() + " >/dev/null 2>&1";
    std::filesystem::create_directory(point);
    mounted_ =
        std::system(command.c_str()) == 0 && ::mount(device.path().c_str(), point.c_str(), "ext4", 0, nullptr) == 0;
  }
  ~Mounted() {
    if (mounted_) ::umount(point_.c_str());
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  [[nodiscard]] bool ready() const noexcept { return mounted_; }

 private:
  std::filesystem::path point_;
  bool mounted_ = false;
};

class ProbeTest : public ::testing::Test {
 protected:
  spillway::testing::TemporaryDirectory directory_;
};

TEST_F(ProbeTest, OfADirectoryLeavesNothingBehind) {
  const Probe found = probe(directory_.path());
  EXPECT_EQ(found.direct, found.direct_refusal.empty());
  EXPECT_TRUE(std::has_single_bit(found.memory_alignment));
  EXPECT_TRUE(std::has_single_bit(found.offset_alignment));
  EXPECT_GT(found.preferred_block, 0U);
  EXPECT_GT(found.free, 0U);
  EXPECT_EQ(found.file_system, sys::mount_of(directory_.path())->type);
  EXPECT_EQ(found.device, sys::device_of(directory_.path()));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(ProbeTest, SaysThatMemoryIsNotDirect) {
  SPILLWAY_NEEDS(shm, std::filesystem::is_directory("/dev/shm"), "no /dev/shm on this machine");
  const spillway::testing::TemporaryDirectory memory("/dev/shm");
  const Probe found = probe(memory.path());
  EXPECT_FALSE(found.direct);
  EXPECT_EQ(found.file_system, "tmpfs");
  EXPECT_EQ(found.offset_alignment, 1U);
  EXPECT_NE(found.direct_refusal, "");
  EXPECT_FALSE(found.remote);
}

class ProbeLoopTest : public ProbeTest, public ::testing::WithParamInterface<unsigned> {
 protected:
  void SetUp() override { REQUIRE_LOOP_DEVICE(loop_); }
  spillway::testing::LoopDevice loop_{directory_.path(), 16 * MiB, GetParam()};
};

TEST_P(ProbeLoopTest, KnowsTheBlocksOfADevice) {
  const Probe found = probe(loop_.path());
  EXPECT_TRUE(found.direct) << found.direct_refusal;
  EXPECT_EQ(found.offset_alignment, GetParam());
  EXPECT_LE(found.memory_alignment, 4096U);
  EXPECT_EQ(found.file_system, "block device");
  EXPECT_EQ(found.free, 16 * MiB);
  EXPECT_EQ(found.device, sys::device_of(loop_.path()));
}

TEST_P(ProbeLoopTest, KnowsWhatAFileSystemOnItAsks) {
  const Mounted mounted(loop_, directory_.path() / "point");
  SPILLWAY_NEEDS(mount, mounted.ready(), "no mkfs.ext4, or no right to mount");
  const Probe found = probe(directory_.path() / "point");
  EXPECT_TRUE(found.direct) << found.direct_refusal;
  EXPECT_EQ(found.offset_alignment, GetParam());
  EXPECT_EQ(found.file_system, "ext4");
  EXPECT_LT(found.free, 16 * MiB);
  EXPECT_EQ(found.device, sys::device_of(loop_.path()));
}

TEST_P(ProbeLoopTest, TryingFindsWhatTheKernelSays) {
  const sys::File device(loop_.path(), {.direct = true});
  const auto reported = sys::reported_alignment(device), tried = sys::tried_alignment(device);
  ASSERT_TRUE(tried);
  EXPECT_EQ(tried->offset, GetParam());
  SPILLWAY_NEEDS(statx, reported, "this kernel does not report alignments");
  EXPECT_EQ(reported->offset, tried->offset);
  EXPECT_LE(tried->memory, std::max<Bytes>(reported->memory, 512));
}

INSTANTIATE_TEST_SUITE_P(Sectors, ProbeLoopTest, ::testing::Values(512, 4096));

TEST_F(ProbeTest, BlocksThatAreTooLargeAreSpokenOf) {
  const spillway::testing::LoopDevice loop(directory_.path(), 16 * MiB, 16384);
  SPILLWAY_NEEDS(loop, loop.ready(), "no devices of such blocks: " << loop.reason());
  const Probe found = probe(loop.path());
  EXPECT_FALSE(found.direct);
  EXPECT_EQ(found.direct_alignment, 16384U);
  EXPECT_EQ(remarks(found),
            std::vector<std::string>{"is on a block device, which wants O_DIRECT aligned to 16.0 KiB, more than 4.0 "
                                     "KiB: it is used through the page cache, which takes memory that the plan does "
                                     "not count"});
}

TEST_F(ProbeTest, OfAFileIsThatOfItsDirectory) {
  const auto path = directory_.path() / "file";
  sys::File(path, {.write = true, .create = true}).reserve(1 * MiB);
  const Probe file = probe_file(path), directory = probe(directory_.path());
  EXPECT_EQ(file.direct, directory.direct);
  EXPECT_EQ(file.offset_alignment, directory.offset_alignment);
  EXPECT_EQ(file.file_system, directory.file_system);
  EXPECT_EQ(file.device, directory.device);
}

TEST(RemarksTest, SayWhatAPersonShouldKnow) {
  Probe found;
  found.direct = true;
  found.file_system = "ext4";
  EXPECT_TRUE(remarks(found).empty());
  found.file_system = "nfs4";
  found.remote = true;
  EXPECT_EQ(remarks(found), std::vector<std::string>{"is on another machine (nfs4): the network, and whoever else uses "
                                                     "it there, decides how fast it is"});
  found.direct = false;
  found.file_system = "unknown";
  ASSERT_EQ(remarks(found).size(), 2U);
  EXPECT_TRUE(remarks(found)[0].starts_with("is on a file system of an unknown kind, which has no O_DIRECT: it is"));
}

TEST_F(ProbeTest, RefusesWhatIsNoPath) {
  EXPECT_ERROR(std::ignore = probe(directory_.path() / "missing"), ErrorCode::bad_input, "missing");
  std::ofstream(directory_.path() / "file") << "x";
  EXPECT_ERROR(std::ignore = probe(directory_.path() / "file"), ErrorCode::bad_input,
               "neither a directory nor a block device");
  EXPECT_ERROR(std::ignore = probe("/proc"), ErrorCode::bad_input, "/proc");
}

}  // namespace
}  // namespace spillway::storage
