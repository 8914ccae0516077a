#include "spillway/sys/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "spillway/base/error.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"
#include "tests/sys/child.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

/// A child that does nothing until it is killed.
class Orphan {
 public:
  Orphan() : process_(::fork()) {
    while (process_ == 0) ::pause();
  }
  ~Orphan() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  Orphan(const Orphan&) = delete;
  Orphan& operator=(const Orphan&) = delete;

 private:
  pid_t process_;
};

class ForkTest : public ::testing::Test {
 protected:
  [[nodiscard]] File open() const { return File(path_, {.write = true, .create = !std::filesystem::exists(path_)}); }

  testing::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "file";
};

/// The holder is a process of its own, which is gone before the lock is asked for; its child is not.
TEST_F(ForkTest, AnOrphanHoldsNoLock) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const File file = open();
    const Mapping memory(1 * MiB);
    const auto ring = make_ring(file, 4);
    std::ignore = ring->register_memory(memory.span());
    const bool locked = file.lock();
    const pid_t orphan = ::fork();
    while (orphan == 0) ::pause();
    std::ignore = ::write(ends[1], locked ? &orphan : &holder, sizeof orphan);
    ::raise(SIGKILL);
  }
  pid_t orphan = 0;
  ASSERT_EQ(::read(ends[0], &orphan, sizeof orphan), static_cast<ssize_t>(sizeof orphan));
  ASSERT_GT(orphan, 0);
  ::waitpid(holder, nullptr, 0);
  const File file = open();
  bool free = file.lock();
  for (int tries = 0; tries < 6000 && !free; ++tries) {  // a ring is given up behind the process's back
    ::usleep(10000);
    free = file.lock();
  }
  EXPECT_EQ(::kill(orphan, SIGKILL), 0);
  EXPECT_TRUE(free);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(ForkTest, AChildLosesTheFileAndItsParentKeepsTheLock) {
  File file = open();
  ASSERT_TRUE(file.lock());
  EXPECT_EQ(testing::in_child([&] {
              std::array<std::byte, 1> byte{};
              if (::pread(file.fd(), byte.data(), 1, 0) != -1 || errno != EBADF) return 1;
              const int other = ::open("/dev/null", O_RDONLY);
              if (other == file.fd()) return 2;
              file = File();  // closes it, and would unlock it
              return 0;
            }),
            0);
  EXPECT_FALSE(open().lock());
}

TEST_F(ForkTest, AChildOpensFilesOfItsOwn) {
  const File file = open();
  EXPECT_EQ(testing::in_child([&] {
              const File own = open();
              std::array<std::byte, 1> byte{std::byte{7}};
              own.write(byte, 0);
              return own.lock() ? 0 : 1;
            }),
            0);
  EXPECT_EQ(file.size(), 1U);
}

TEST_F(ForkTest, MappingsAreNotInherited) {
  const Mapping memory(1 * MiB);
  EXPECT_EQ(testing::in_child([&] {
              unsigned char there = 0;
              return ::mincore(memory.span().data(), kPage, &there) == -1 && errno == ENOMEM ? 0 : 1;
            }),
            0);
}

TEST_F(ForkTest, WhatBelongsToAProcessIsRefusedInItsChildren) {
  const OfProcess<int> object(std::make_unique<int>(5));
  EXPECT_EQ(*object.operator->(), 5);
  const auto before = forks();
  EXPECT_EQ(testing::in_child([&] {
              if (forks() != before + 1) return 1;
              try {
                return *object.operator->();
              } catch (const Error& error) {
                return error.code() == ErrorCode::unsupported ? 0 : 2;
              }
            }),
            0);
  EXPECT_EQ(forks(), before);
}

}  // namespace
}  // namespace spillway::sys
