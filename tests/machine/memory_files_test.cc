// Directories for files as memory: what is refused, what a person is told, and that rates are measured there.
#include "spillway/machine/memory_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "spillway/sys/file.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::machine {
namespace {

class MemoryFilesTest : public ::testing::Test {
 protected:
  /// As if the directory were on a file system of that type.
  [[nodiscard]] std::string mounted_as(const std::string& type) const {
    std::filesystem::create_directories(root_.path() / "proc/self");
    const auto point = std::filesystem::canonical(directory_.path()).string();
    std::ofstream(root_.path() / "proc/self/mountinfo") << "1 0 8:1 / " << point << " rw - " << type << " /dev/a rw\n";
    return root_.path();
  }
  static void check(const std::vector<FileShare>& asked, const std::string& root = "") {
    static_cast<void>(check_files(asked, root));
  }
  [[nodiscard]] FileShare share(Bytes capacity = 1 * MiB) const { return {directory_.path(), capacity}; }

  spillway::testing::TemporaryDirectory directory_, root_;
};

TEST_F(MemoryFilesTest, ThatCannotBeAreRefused) {
  EXPECT_ERROR(check({{directory_.path() / "none", 1}}), ErrorCode::bad_input, "memory_file");
  std::ofstream(directory_.path() / "file") << "no directory";
  EXPECT_ERROR(check({{directory_.path() / "file", 1}}), ErrorCode::bad_input, "is no directory");
  EXPECT_ERROR(check({share(), {directory_.path() / ".", 1}}), ErrorCode::bad_input, "given twice");
  std::filesystem::create_directory(directory_.path() / "other");
  const auto most = sys::free_space(directory_.path()) / 3 * 2;
  EXPECT_ERROR(check({share(most), {directory_.path() / "other", most}}), ErrorCode::does_not_fit, "other");
  EXPECT_ERROR(check({share(Bytes{1} << 60)}), ErrorCode::does_not_fit, "It would fit with --memory_file");
}

TEST_F(MemoryFilesTest, OfFileSystemsThatCannotPromiseSpaceAreRefused) {
  for (const auto* type : {"btrfs", "zfs", "hugetlbfs"}) {
    EXPECT_ERROR(check({share()}, mounted_as(type)), ErrorCode::unsupported, type);
  }
}

TEST_F(MemoryFilesTest, OnAPageCacheComeWithAWarning) {
  const auto found = check_files({share()}, mounted_as("ext4"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_FALSE(found[0].in_dram);
  EXPECT_NE(found[0].notice.find("is on ext4 with a page cache"), std::string::npos) << found[0].notice;
}

TEST_F(MemoryFilesTest, OfATmpfsAreDram) {
  const auto found = check_files({share()}, mounted_as("tmpfs"));
  EXPECT_TRUE(found.at(0).in_dram);
  EXPECT_EQ(found.at(0).notice, "");
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "a file is left";
}

TEST_F(MemoryFilesTest, AreMeasuredWhereTheyLie) {
  const auto rates = measure_file(share(64 * MiB), 32 * MiB, 0.01, {});
  EXPECT_GT(rates.update_elements_per_second_thread, 1e5);
  EXPECT_GT(rates.update_elements_per_second, 1e5);
  EXPECT_GT(rates.read_bytes_per_second, 1e6);
  EXPECT_EQ(measure_file(share(1 * MiB), 1 * GiB, 0.01, {}), NodeRate{}) << "too small to say";
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace spillway::machine
