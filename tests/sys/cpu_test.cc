#include "spillway/sys/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "spillway/base/error.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

class CpuQuota : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& words) {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << words;
  }
  [[nodiscard]] std::optional<double> quota() const { return cpu_quota_below(directory_.path().string()); }

  testing::TemporaryDirectory directory_;
};

TEST_F(CpuQuota, WithoutGroupsThereIsNone) {
  EXPECT_FALSE(quota());
}

TEST_F(CpuQuota, Version2TakesTheTightestLevel) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/one/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CpuQuota, Version2WithoutALimit) {
  write("proc/self/cgroup", "0::/jobs\n");
  write("sys/fs/cgroup/jobs/cpu.max", "max 100000\n");
  EXPECT_FALSE(quota());
}

TEST_F(CpuQuota, Version1SeesThroughAContainersMount) {
  write("proc/self/cgroup", "3:cpu,cpuacct:/outside/name\n0::/\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(CpuQuota, Version1WithoutALimit) {
  write("proc/self/cgroup", "3:cpu:/\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(quota());
}

TEST_F(CpuQuota, SharedCachesCountOnce) {
  for (const auto* cpu : {"cpu0", "cpu1", "cpu2"}) {
    const auto cache = text("sys/devices/system/cpu/", cpu, "/cache/");
    write(cache + "index0/level", "1\n");
    write(cache + "index0/size", "48K\n");
    write(cache + "index3/level", "3\n");
    write(cache + "index3/size", "32768K\n");
    write(cache + "index3/shared_cpu_list", std::string(cpu) == "cpu2" ? "2\n" : "0-1\n");
  }
  EXPECT_EQ(largest_caches(directory_.path().string()), 64 * MiB);
  EXPECT_EQ(largest_caches((directory_.path() / "none").string()), 0U);
}

TEST(Caches, WhatIsDroppedKeepsItsBytes) {
  for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 4097U}) {
    std::vector<std::byte> bytes(size + 1, std::byte{7});
    drop_from_caches(std::span(bytes).subspan(1));
    EXPECT_EQ(std::ranges::count(bytes, std::byte{7}), static_cast<std::ptrdiff_t>(size + 1)) << size;
  }
}

}  // namespace
}  // namespace spillway::sys
