#include "spillway/sys/process.h"

#include <gtest/gtest.h>

#include <fstream>

#include "spillway/sys/mapping.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

TEST(ProcessMemoryTest, SeesMemoryThatIsTouched) {
  const Bytes before = process_memory().resident;
  const Mapping memory(64 * MiB);
  ASSERT_TRUE(populate(memory.span()));
  EXPECT_GE(process_memory().resident, before + 60 * MiB);
  EXPECT_GE(process_memory().peak_resident, before + 60 * MiB);
}

TEST(ProcessMemoryTest, PeakCanBeReset) {
  {
    const Mapping memory(64 * MiB);
    ASSERT_TRUE(populate(memory.span()));
  }
  const Bytes peak = process_memory().peak_resident;
  SPILLWAY_NEEDS(clear_refs, reset_peak_resident(), "the kernel does not let us write /proc/self/clear_refs");
  EXPECT_LT(process_memory().peak_resident, peak);
}

TEST(DramFactsTest, FitThisMachine) {
  const DramFacts facts = dram_facts();
  EXPECT_GT(facts.total, 0U);
  EXPECT_GT(facts.available, 0U);
  EXPECT_LE(facts.available, facts.total);
}

/// A machine of 16 GiB with 8 free, as files.
class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() { write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"); }

  void write(const std::string& name, const std::string& words) {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << words;
  }
  [[nodiscard]] DramFacts facts() const { return dram_facts_below(directory_.path().string()); }

  testing::TemporaryDirectory directory_;
};

TEST_F(FakeMachine, WithoutGroups) {
  EXPECT_EQ(facts().total, 16 * GiB);
  EXPECT_EQ(facts().available, 8 * GiB);
  EXPECT_FALSE(facts().group);
}

TEST_F(FakeMachine, Version2TakesTheTightestLevel) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/one/memory.current", "5\n");
  write("sys/fs/cgroup/jobs/memory.max", "4294967296\n");
  write("sys/fs/cgroup/jobs/memory.current", "3221225472\n");
  write("sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 1073741824\n");
  ASSERT_TRUE(facts().group);
  EXPECT_EQ(facts().total, 4 * GiB);
  EXPECT_EQ(facts().available, 2 * GiB);
}

TEST_F(FakeMachine, Version1SeesThroughAContainersMount) {
  write("proc/self/cgroup", "4:cpu,memory:/outside/name\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "3147483648\n");
  EXPECT_EQ(facts().total, 2 * GiB);
  EXPECT_EQ(facts().available, 0U);
}

TEST_F(FakeMachine, Version1WithoutALimit) {
  write("proc/self/cgroup", "4:memory:/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_FALSE(facts().group);
  EXPECT_EQ(facts().total, 16 * GiB);
}

TEST_F(FakeMachine, WithoutProcIsUnsupported) {
  std::filesystem::remove_all(directory_.path() / "proc");
  EXPECT_ERROR(std::ignore = facts(), ErrorCode::unsupported, "mount /proc");
}

}  // namespace
}  // namespace spillway::sys
