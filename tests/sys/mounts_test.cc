#include "spillway/sys/mounts.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

class MountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root() + "/proc/self");
    std::filesystem::create_directories(inner_);
  }
  void put(const std::string& lines) const { std::ofstream(root() + "/proc/self/mountinfo") << lines; }
  [[nodiscard]] std::string root() const { return directory_.path(); }

  testing::TemporaryDirectory directory_;
  std::filesystem::path inner_ = directory_.path() / "data/inner";
};

TEST_F(MountsTest, ReadsWhatTheKernelWrites) {
  put("22 28 0:21 / /sys rw,relatime shared:7 - sysfs sysfs rw\n"
      "77 28 259:3 /sub /my\\040disk\\134 rw shared:9 master:2 - ext4 /dev/nvme0n1p3 rw\n"
      "a line of another kind\n");
  const auto all = mounts(root());
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].type, "sysfs");
  EXPECT_EQ(all[1].device, (DeviceId{259, 3}));
  EXPECT_EQ(all[1].point, "/my disk\\");
  EXPECT_EQ(all[1].source, "/dev/nvme0n1p3");
}

TEST_F(MountsTest, TheDeepestAndLastMountCounts) {
  const std::string data = root() + "/data";
  put("1 0 8:1 / / rw - ext4 /dev/a rw\n"
      "2 1 8:2 / " +
      data +
      " rw - xfs /dev/b rw\n"
      "3 2 8:3 / " +
      data +
      " rw - btrfs /dev/c rw\n"
      "4 1 8:4 / " +
      data + "/inn rw - ext2 /dev/d rw\n");
  EXPECT_EQ(mount_of(inner_, root())->type, "btrfs");
  EXPECT_EQ(mount_of(directory_.path(), root())->type, "ext4");
  EXPECT_FALSE(mount_of(inner_ / "missing", root()));
}

TEST_F(MountsTest, WithoutProcThereAreNone) {
  EXPECT_TRUE(mounts(root()).empty());
  EXPECT_FALSE(mount_of(inner_, root()));
}

TEST_F(MountsTest, KnowsWhatIsRemote) {
  const auto remote = [](const char* type, const char* source) { return is_remote({{}, "/", type, source}); };
  EXPECT_TRUE(remote("nfs4", "server:/export"));
  EXPECT_TRUE(remote("lustre", "10.0.0.1@tcp:/fs"));
  EXPECT_TRUE(remote("fuse.sshfs", "me@there:/home"));
  EXPECT_TRUE(remote("fuse.other", "host:/x"));
  EXPECT_FALSE(remote("ext4", "/dev/sda1"));
  EXPECT_FALSE(remote("fuse.local", "local"));
  EXPECT_FALSE(remote("fuseblk", "/dev/sda1"));
  EXPECT_FALSE(remote("overlay", "overlay"));
}

TEST_F(MountsTest, TheRealRootIsMounted) {
  EXPECT_TRUE(mount_of("/"));
}

}  // namespace
}  // namespace spillway::sys
