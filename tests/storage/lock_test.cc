#include "spillway/storage/lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "spillway/sys/lock_taker.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

using std::chrono::milliseconds;

TEST(LockTest, IsWaitedForButNotForEver) {
  const spillway::testing::TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  std::optional<sys::File> other;
  other.emplace(path, sys::FileOptions{.write = true, .create = true});
  ASSERT_TRUE(lock_within(*other, milliseconds(0)));
  const sys::File mine(path, {.write = true});
  EXPECT_FALSE(lock_within(mine, milliseconds(0)));
  EXPECT_FALSE(lock_within(mine, milliseconds(5)));
  std::thread leaving([&] { other.reset(); });
  EXPECT_TRUE(lock_within(mine, std::chrono::minutes(1)));
  leaving.join();
  EXPECT_FALSE(lock_within(sys::File(path), milliseconds(0)));
}

/// A process takes the lock and ends; what it leaves open, here in its parent, holds the lock for a while.
TEST(LockTest, OfAProcessThatHasEndedIsWaitedForLonger) {
  const spillway::testing::TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  const sys::File mine(path, {.write = true, .create = true});
  const int left = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(left, 0);
  const auto taker = ::fork();
  if (taker == 0) ::_exit(::flock(left, LOCK_EX));
  int status = -1;
  ASSERT_EQ(::waitpid(taker, &status, 0), taker);
  ASSERT_EQ(status, 0);
  ASSERT_FALSE(mine.lock());
  if (!sys::is_locked_by_the_dead(mine)) GTEST_SKIP() << "the kernel does not say here whose locks are";
  std::thread leaving([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ::close(left);
  });
  EXPECT_TRUE(lock_within(mine, milliseconds(0)));
  leaving.join();
  EXPECT_FALSE(sys::is_locked_by_the_dead(mine));
}

}  // namespace
}  // namespace spillway::storage
