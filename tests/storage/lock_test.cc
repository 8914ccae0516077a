#include "spillway/storage/lock.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

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

}  // namespace
}  // namespace spillway::storage
