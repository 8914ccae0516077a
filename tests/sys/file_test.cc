#include "spillway/sys/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string_view>
#include <vector>

#include "spillway/sys/mapping.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

std::vector<std::byte> bytes_of(std::string_view words) {
  const auto* data = reinterpret_cast<const std::byte*>(words.data());
  return {data, data + words.size()};
}

class FileTest : public ::testing::Test {
 protected:
  testing::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "file";
};

TEST_F(FileTest, ReturnsWhatWasWritten) {
  const File file(path_, {.write = true, .create = true});
  file.write(bytes_of("spill"), 10);
  std::vector<std::byte> read(5);
  file.read(read, 10);
  EXPECT_EQ(read, bytes_of("spill"));
  EXPECT_EQ(file.size(), 15U);
  EXPECT_TRUE(file.is_regular());
}

TEST_F(FileTest, DescriptorIsNeverThatOfAStandardStream) {
  const int input = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  const File file(path_, {.write = true, .create = true});
  const File again(path_);
  const bool is_free = ::fcntl(STDIN_FILENO, F_GETFD) < 0;
  if (input >= 0) ::dup2(input, STDIN_FILENO);
  if (input >= 0) ::close(input);
  EXPECT_TRUE(is_free);
  EXPECT_GT(file.fd(), STDERR_FILENO);
  EXPECT_GT(again.fd(), STDERR_FILENO);
}

TEST_F(FileTest, KnowsItsNewName) {
  File file(path_, {.write = true, .create = true});
  file.rename(directory_.path() / "other");
  EXPECT_EQ(file.path(), directory_.path() / "other");
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(File(file.path()).size(), 0U);
  EXPECT_ERROR(file.rename(directory_.path() / "none" / "x"), ErrorCode::bad_input, "rename");
  EXPECT_EQ(file.path(), directory_.path() / "other");
}

TEST_F(FileTest, ANewOneTakesNoNameThatIsTaken) {
  std::ofstream(path_) << "somebody's thesis";
  const auto link = directory_.path() / "link";
  std::filesystem::create_symlink(path_, link);
  for (const auto& taken : {path_, link}) {
    const auto error = testing::error_of([&] { File(taken, {.write = true, .create = true, .direct = true}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->errno_value(), EEXIST);
  }
  EXPECT_EQ(File(path_).size(), 17U);
  const auto error = testing::error_of([&] { File(link, {.follow = false}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), ELOOP);
}

TEST_F(FileTest, KnowsWhetherItHasItsName) {
  const File file(path_, {.write = true, .create = true});
  EXPECT_TRUE(file.has_its_name());
  std::filesystem::remove(path_);
  EXPECT_FALSE(file.has_its_name());
  std::ofstream(path_) << "another";
  EXPECT_FALSE(file.has_its_name());
}

TEST_F(FileTest, OneWithoutANameLeavesNothing) {
  const File file = nameless_file(directory_.path());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  file.write(bytes_of("spill"), 0);
  EXPECT_EQ(file.size(), 5U);
}

TEST_F(FileTest, NamesAMissingFile) {
  EXPECT_ERROR(File{path_}, ErrorCode::bad_input, "cannot open " + path_.string());
  const auto error = testing::error_of([&] { File{path_}; });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), ENOENT);
  EXPECT_EQ(error->path(), path_.string());
}

TEST_F(FileTest, SaysWhereAFileEndsEarly) {
  const File file(path_, {.write = true, .create = true});
  file.write(bytes_of("12345"), 0);
  std::vector<std::byte> read(8);
  EXPECT_ERROR(file.read(read, 0), ErrorCode::io, "ends at byte 5; 3 more");
}

TEST_F(FileTest, ReportsErrnoOfAFailedWrite) {
  std::ofstream(path_) << "x";
  const File file(path_);
  const auto error = testing::error_of([&] { file.write(bytes_of("y"), 0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), EBADF);
}

TEST_F(FileTest, ReservesItsSpace) {
  const File file(path_, {.write = true, .create = true});
  file.reserve(3 * MiB);
  EXPECT_EQ(file.size(), 3 * MiB);
  EXPECT_GE(file.reserved(), 3 * MiB);
  file.sync();
}

TEST_F(FileTest, RefusesToReserveMoreThanThereIs) {
  const File file(path_, {.write = true, .create = true});
  EXPECT_ERROR(file.reserve(Bytes{1} << 60), ErrorCode::does_not_fit, "reserve");
}

TEST_F(FileTest, DirectTransfersRoundTrip) {
  const File file(path_, {.write = true, .create = true, .direct = true});
  SPILLWAY_NEEDS(direct, file.direct(), "no O_DIRECT in " << directory_.path() << ": " << file.direct_refusal());
  const Mapping memory(8 * KiB);
  const auto out = memory.span().first(4 * KiB);
  const auto in = memory.span().last(4 * KiB);
  out[17] = std::byte{42};
  file.write(out, 4 * KiB);
  file.read(in, 4 * KiB);
  EXPECT_EQ(in[17], std::byte{42});
}

TEST_F(FileTest, SaysWhyItIsNotDirect) {
  SPILLWAY_NEEDS(shm, std::filesystem::is_directory("/dev/shm"), "no /dev/shm on this machine");
  const testing::TemporaryDirectory memory("/dev/shm");
  const File file(memory.path() / "file", {.write = true, .create = true, .direct = true});
  EXPECT_FALSE(file.direct());
  EXPECT_FALSE(file.direct_refusal().empty());
}

TEST_F(FileTest, ASecondLockIsRefused) {
  const File first(path_, {.write = true, .create = true});
  EXPECT_TRUE(first.lock());
  {
    const File second(path_, {.write = true});
    EXPECT_FALSE(second.lock());
  }
  EXPECT_TRUE(first.lock());
}

TEST_F(FileTest, MovesItsDescriptor) {
  File first(path_, {.write = true, .create = true});
  const int fd = first.fd();
  File second(std::move(first));
  EXPECT_EQ(second.fd(), fd);
  File third;
  EXPECT_FALSE(third.is_open());
  third = std::move(second);
  EXPECT_EQ(third.fd(), fd);
}

TEST_F(FileTest, KnowsTheFreeSpace) {
  EXPECT_GT(free_space(directory_.path()), 0U);
  EXPECT_ERROR(std::ignore = free_space(directory_.path() / "missing"), ErrorCode::bad_input, "free space");
  sync_directory(directory_.path());
}

}  // namespace
}  // namespace spillway::sys
