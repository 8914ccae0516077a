#include "spillway/storage/share.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <numeric>
#include <vector>

#include "spillway/storage/share_layout.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

constexpr sys::DeviceId kDevice{240, 7};
constexpr auto kRead = Direction::read;
constexpr auto kWrite = Direction::write;

class ShareTest : public ::testing::Test {
 protected:
  [[nodiscard]] ShareOptions options(Bytes budget = 16 * MiB) const {
    return {.read_budget = budget, .write_budget = budget, .directory = directory_.path()};
  }
  std::unique_ptr<Share> join(Bytes budget = 16 * MiB) const {
    return std::make_unique<Share>(kDevice, options(budget));
  }
  /// Takes pieces until refused; how many it got.
  static int take_all(Share& share, Bytes piece = 1 * MiB, int most = 1000) {
    int got = 0;
    while (got < most && share.try_acquire(kWrite, piece)) ++got;
    return got;
  }

  spillway::testing::TemporaryDirectory directory_;
};

/// Users of a device that serves one piece after the other, in the order in which they were begun.
class Crowd {
 public:
  struct User {
    std::unique_ptr<Share> share;
    unsigned depth;
    Bytes piece = 1 * MiB;
    unsigned in_flight = 0;
    Bytes served = 0;
  };

  void add(std::unique_ptr<Share> share, unsigned depth, Bytes piece = 1 * MiB) {
    users_.push_back({std::move(share), depth, piece});
    fill(users_.size() - 1);
  }
  void leave(std::size_t user) { users_[user].depth = 0; }
  void serve(int pieces) {
    for (; pieces > 0; --pieces) {
      const std::size_t id = queue_.front();
      queue_.pop_front();
      User& user = users_[id];
      --user.in_flight;
      user.served += user.piece;
      user.share->release(kWrite, user.piece);
      fill(id);
    }
  }
  /// Bytes served to each since the last call, in parts of their mean.
  std::vector<double> shares() {
    Bytes sum = 0;
    for (const User& user : users_) sum += user.served;
    std::vector<double> parts;
    for (User& user : users_) {
      parts.push_back(static_cast<double>(std::exchange(user.served, 0) * users_.size()) / static_cast<double>(sum));
    }
    return parts;
  }
  [[nodiscard]] const User& operator[](std::size_t user) const { return users_[user]; }

 private:
  void fill(std::size_t id) {
    User& user = users_[id];
    while (user.in_flight < user.depth && user.share->try_acquire(kWrite, user.piece)) {
      ++user.in_flight;
      queue_.push_back(id);
    }
  }

  std::vector<User> users_;
  std::deque<std::size_t> queue_;  ///< of users, by piece
};

TEST_F(ShareTest, AloneItTakesAllItWants) {
  const auto share = join(2 * MiB);
  EXPECT_EQ(take_all(*share, 1 * MiB, 64), 64);
  EXPECT_EQ(share->held(kWrite), 64 * MiB);
  EXPECT_EQ(share->held(kRead), 0U);
  for (int i = 0; i < 64; ++i) share->release(kWrite, 1 * MiB);
  EXPECT_EQ(share->held(kWrite), 0U);
}

TEST_F(ShareTest, ReadsAndWritesHaveBudgetsOfTheirOwn) {
  const auto first = join(), second = join();
  EXPECT_EQ(take_all(*first, 1 * MiB, 8), 8);
  EXPECT_EQ(take_all(*second), 8);
  EXPECT_TRUE(first->try_acquire(kRead, 16 * MiB));
  EXPECT_FALSE(first->try_acquire(kWrite, 1 * MiB));
}

TEST_F(ShareTest, OneThatComesLaterHasItsPartAtOnce) {
  const auto early = join(), late = join();
  EXPECT_EQ(take_all(*early, 1 * MiB, 64), 64);
  EXPECT_EQ(take_all(*late), 8);
  EXPECT_FALSE(early->try_acquire(kWrite, 1 * MiB));
}

TEST_F(ShareTest, WhatOthersLeaveCanBeUsed) {
  const auto modest = join(), hungry = join();
  EXPECT_EQ(take_all(*modest, 1 * MiB, 3), 3);
  EXPECT_EQ(take_all(*hungry), 13);
}

TEST_F(ShareTest, WhoHoldsNothingIsNeverRefused) {
  const auto first = join(4 * MiB), second = join(4 * MiB);
  EXPECT_EQ(take_all(*first, 1 * MiB, 64), 64);
  EXPECT_TRUE(second->try_acquire(kWrite, 64 * MiB));
  EXPECT_FALSE(second->try_acquire(kWrite, 1 * MiB));
}

TEST_F(ShareTest, ARefusalChangesNothing) {
  const auto first = join(), second = join();
  EXPECT_EQ(take_all(*first), 1000);
  EXPECT_EQ(take_all(*second), 8);
  const Bytes held = second->held(kWrite);
  EXPECT_FALSE(second->try_acquire(kWrite, 1 * MiB));
  EXPECT_EQ(second->held(kWrite), held);
}

TEST_F(ShareTest, LeavingGivesBackWhatWasHeld) {
  auto first = join();
  const auto second = join();
  EXPECT_EQ(take_all(*first, 1 * MiB, 16), 16);
  EXPECT_EQ(take_all(*second), 8);
  first.reset();
  EXPECT_EQ(take_all(*second, 1 * MiB, 50), 50);
}

class FairShareTest : public ShareTest, public ::testing::WithParamInterface<int> {};

TEST_P(FairShareTest, AllGetTheSameBytes) {
  Crowd crowd;
  for (int i = 0; i < GetParam(); ++i) crowd.add(join(), 16);
  crowd.serve(100);
  crowd.shares();
  crowd.serve(2000);
  for (const double share : crowd.shares()) EXPECT_NEAR(share, 1, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Crowds, FairShareTest, ::testing::Values(2, 3, 4, 5, 7, 16, 24));

TEST_F(ShareTest, DepthAndPieceSizeDoNotMatter) {
  Crowd crowd;
  crowd.add(join(), 64);
  crowd.add(join(), 16, 512 * KiB);
  crowd.add(join(), 8);
  crowd.serve(100);
  crowd.shares();
  crowd.serve(4000);
  for (const double share : crowd.shares()) EXPECT_NEAR(share, 1, 0.1);
}

TEST_F(ShareTest, ManyRequestsDoNotStarveOne) {
  Crowd crowd;
  crowd.add(join(), 64);
  crowd.add(join(), 1);
  crowd.serve(64);  // those that were begun before there was anybody else
  crowd.shares();
  crowd.serve(1600);
  EXPECT_NEAR(crowd.shares()[1], 2.0 / 16, 0.01);  // one of the sixteen pieces in flight is always its own
}

TEST_F(ShareTest, HavingBeenIdleIsNoCredit) {
  Crowd crowd;
  crowd.add(join(), 2);
  crowd.add(join(), 16);
  crowd.serve(10000);
  crowd.add(join(), 16);  // what the first leaves over is for both others, not for the late one until it caught up
  crowd.serve(200);
  const auto parts = (crowd.shares(), crowd.serve(3000), crowd.shares());
  EXPECT_NEAR(parts[1], parts[2], 0.05);
}

TEST_F(ShareTest, OneThatGoesLeavesItsPartToTheOthers) {
  Crowd crowd;
  crowd.add(join(), 16);
  crowd.add(join(), 16);
  crowd.serve(100);
  crowd.leave(0);
  crowd.serve(30);
  EXPECT_EQ(crowd[1].in_flight, 16U);
}

TEST_F(ShareTest, MoreProcessesThanSlotsAreRefused) {
  std::vector<std::unique_ptr<Share>> all;
  for (unsigned i = 0; i < kShareSlots; ++i) all.push_back(join());
  EXPECT_ERROR(join(), ErrorCode::does_not_fit, "64 processes share this device already");
  EXPECT_EQ(all[0]->processes().size(), kShareSlots);
  all.erase(all.begin() + 17);
  EXPECT_TRUE(join()->try_acquire(kRead, 1));
}

TEST_F(ShareTest, TheBudgetOfTheFirstCounts) {
  auto first = join(4 * MiB);
  EXPECT_EQ(join(8 * MiB)->budget(kWrite), 4 * MiB);
  first.reset();
  EXPECT_EQ(join(8 * MiB)->budget(kWrite), 8 * MiB);
}

TEST_F(ShareTest, DevicesAndDirectoriesAreApart) {
  const auto share = join();
  const Share other({240, 8}, options());
  EXPECT_NE(share->file(), other.file());
  EXPECT_EQ(other.processes().size(), 1U);
}

TEST_F(ShareTest, NothingThatIsWrittenIntoTheTableBlocks) {
  const auto good = join(), bad = join();
  ASSERT_TRUE(bad->try_acquire(kWrite, 1));
  ASSERT_TRUE(good->try_acquire(kWrite, 1 * MiB));
  std::fstream table(good->file(), std::ios::in | std::ios::out | std::ios::binary);
  table.seekp(offsetof(ShareTable, slots) + sizeof(ShareSlot));
  const std::vector<char> ones(sizeof(ShareSlot), '\xff');
  table.write(ones.data(), static_cast<std::streamsize>(ones.size())).flush();
  EXPECT_EQ(take_all(*good), 7);
  for (int i = 0; i < 8; ++i) good->release(kWrite, 1 * MiB);
  EXPECT_EQ(take_all(*good), 8);
}

class ShareTableTest : public ShareTest {
 protected:
  ShareTableTest() { file_ = join()->file(); }
  void write(Bytes at, std::string_view bytes) const {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  }
  std::filesystem::path file_;
};

TEST_F(ShareTableTest, AnUnusedOneIsReplacedWhateverItHolds) {
  std::ofstream(file_, std::ios::trunc) << "something else";
  EXPECT_EQ(take_all(*join(), 1 * MiB, 20), 20);
  std::ofstream(file_, std::ios::trunc) << std::string(100000, 'x');
  const auto first = join(), second = join();
  EXPECT_EQ(take_all(*first, 1 * MiB, 8), 8);
  EXPECT_EQ(take_all(*second), 8);
  EXPECT_EQ(std::filesystem::file_size(file_), sizeof(ShareTable));
}

TEST_F(ShareTableTest, ADamagedOneInUseIsRefused) {
  const auto user = join();
  for (std::size_t at = 0; at < offsetof(ShareHeader, checksum) + 8; ++at) {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char old = static_cast<char>(file.get());
    write(at, std::string(1, static_cast<char>(old ^ (1 << at % 8))));
    EXPECT_ERROR(join(), ErrorCode::unsupported, file_.string());
    write(at, std::string(1, old));
  }
  EXPECT_EQ(join()->processes().size(), 2U);
}

TEST_F(ShareTableTest, AnotherFormatInUseIsRefused) {
  const sys::SharedMemory other(file_);  // as another version would hold it
  ASSERT_TRUE(other.try_lock(kShareSlotLocks + 5));
  other.reset(32);
  EXPECT_ERROR(join(), ErrorCode::unsupported, "is 32 bytes long, and processes use it");
  other.unlock(kShareSlotLocks + 5);
  EXPECT_EQ(join()->processes().size(), 1U);
}

TEST_F(ShareTableTest, OnlyItsUserMayReadIt) {
  EXPECT_EQ(std::filesystem::status(file_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(ShareTableTest, ALinkIsRefused) {
  std::filesystem::remove(file_);
  std::filesystem::create_symlink(directory_.path() / "elsewhere", file_);
  EXPECT_ERROR(join(), ErrorCode::bad_input, file_.string());
}

}  // namespace
}  // namespace spillway::storage
