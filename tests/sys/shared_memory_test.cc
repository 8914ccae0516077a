#include "spillway/sys/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>

#include "tests/needs.h"
#include "tests/sys/child.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

using namespace std::chrono_literals;

class SharedMemoryTest : public ::testing::Test {
 protected:
  testing::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "table";
};

TEST_F(SharedMemoryTest, WhatOneWritesTheOtherReads) {
  SharedMemory first(path_), second(path_);
  EXPECT_EQ(first.size(), 0U);
  first.reset(8192);
  first.map(8192);
  second.map(second.size());
  first.span()[8191] = std::byte{5};
  EXPECT_EQ(second.span()[8191], std::byte{5});
  EXPECT_EQ(testing::in_child([&] {
              SharedMemory third(path_);
              third.map(third.size());
              third.span()[17] = std::byte{6};
              return 0;
            }),
            0);
  EXPECT_EQ(first.span()[17], std::byte{6});
}

TEST_F(SharedMemoryTest, ResetLeavesZeros) {
  SharedMemory memory(path_);
  memory.reset(100);
  {
    SharedMemory other(path_);
    other.map(100);
    other.span()[99] = std::byte{1};
  }
  memory.reset(50);
  memory.reset(100);
  memory.map(100);
  EXPECT_EQ(memory.span()[99], std::byte{0});
}

TEST_F(SharedMemoryTest, ALockIsForOneAndGoesWithIt) {
  const SharedMemory first(path_);
  {
    const SharedMemory second(path_);
    EXPECT_TRUE(second.try_lock(3));
    EXPECT_FALSE(first.try_lock(3));
    EXPECT_TRUE(first.try_lock(4));
    EXPECT_TRUE(first.locked_elsewhere(3));
    EXPECT_FALSE(first.locked_elsewhere(4));
    EXPECT_TRUE(first.locked_elsewhere(0, 10));
    EXPECT_FALSE(first.locked_elsewhere(4, 10));
  }
  EXPECT_FALSE(first.locked_elsewhere(0, 10));
  EXPECT_TRUE(first.try_lock(3));
}

TEST_F(SharedMemoryTest, LockWaitsForUnlock) {
  const SharedMemory first(path_), second(path_);
  ASSERT_TRUE(first.lock_within(1, 0ms));
  auto waiting = std::async(std::launch::async, [&] { return second.lock_within(1, 1h); });
  first.unlock(1);
  EXPECT_TRUE(waiting.get());
  EXPECT_FALSE(first.try_lock(1));
}

TEST_F(SharedMemoryTest, ALockThatIsNotGivenBackIsNotWaitedForForEver) {
  const SharedMemory first(path_), second(path_);
  ASSERT_TRUE(first.lock_within(1, 0ms));
  EXPECT_FALSE(second.lock_within(1, 10ms));
  first.unlock(1);
  EXPECT_TRUE(second.lock_within(1, 0ms));
}

TEST_F(SharedMemoryTest, ALockDiesWithItsProcess) {
  const SharedMemory here(path_);
  EXPECT_EQ(testing::in_child([&] {
              const SharedMemory there(path_);
              return there.try_lock(2) && here.locked_elsewhere(2) ? 0 : 1;
            }),
            0);
  EXPECT_FALSE(here.locked_elsewhere(2));
}

TEST_F(SharedMemoryTest, RefusesWhatIsNotItsUsersFile) {
  std::filesystem::create_directory(path_);
  EXPECT_ERROR(SharedMemory{path_}, ErrorCode::bad_input, path_.string());
  const auto fifo = directory_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_ERROR(SharedMemory{fifo}, ErrorCode::bad_input, "is not a regular file");
  const auto foreign = directory_.path() / "foreign";
  const SharedMemory made(foreign);
  SPILLWAY_NEEDS(root, ::chown(foreign.c_str(), 12345, 12345) == 0, "only root can give a file away");
  EXPECT_ERROR(SharedMemory{foreign}, ErrorCode::bad_input, "belongs to user 12345");
}

TEST_F(SharedMemoryTest, ThereIsAPlaceForIt) {
  EXPECT_TRUE(std::filesystem::is_directory(shared_memory_directory()));
  EXPECT_EQ(process_id(), ::getpid());
}

}  // namespace
}  // namespace spillway::sys
