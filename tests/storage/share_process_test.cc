// Shares of real processes, which are stopped and killed. A parent plays the device and moves them in lock step, so
// that bytes can be compared without a clock.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "spillway/storage/share.h"
#include "tests/sys/child.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

constexpr sys::DeviceId kSharedDevice{240, 7};
constexpr Bytes kPiece = 1 * MiB;

constexpr char kFailed = -1;

class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void put(char byte) const {
    if (::write(ends_[1], &byte, 1) != 1) throw std::runtime_error("the pipe takes nothing");
  }
  [[nodiscard]] char get() const {
    char byte = 0;
    if (::read(ends_[0], &byte, 1) != 1 || byte == kFailed) throw std::runtime_error("the other side has failed");
    return byte;
  }

 private:
  std::array<int, 2> ends_{};
};

/// A child that runs `body(orders, answers)` until it is killed.
class Process {
 public:
  template <class Body>
  explicit Process(Body&& body) : child_(::fork()) {
    if (child_ < 0) throw std::runtime_error("no fork");
    if (child_ > 0) return;
    try {
      body(orders, answers);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    answers.put(kFailed);
    ::_exit(70);
  }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  void stop() const {
    ::kill(child_, SIGSTOP);
    ::waitpid(child_, nullptr, WUNTRACED);
  }
  void go_on() const {
    ::kill(child_, SIGCONT);
    ::waitpid(child_, nullptr, WCONTINUED);
  }

  Pipe orders, answers;

 private:
  pid_t child_;
};

/// Begins pieces until it is refused or has `depth` in flight; answers how many. Each order says that one has ended.
void use_device(const ShareOptions& options, unsigned depth, const Pipe& orders, const Pipe& answers) {
  Share share(kSharedDevice, options);
  for (unsigned in_flight = 0;; --in_flight) {
    char begun = 0;
    for (; in_flight < depth && share.try_acquire(Direction::write, kPiece); ++in_flight) ++begun;
    answers.put(begun);
    std::ignore = orders.get();
    share.release(Direction::write, kPiece);
  }
}

class ShareProcessTest : public ::testing::Test {
 protected:
  static constexpr int kPieces = 1000;
  static constexpr unsigned kDepth = 16;

  struct User {
    std::unique_ptr<Process> process;
    bool stopped = false;
    int in_flight = 0;
    int served = 0;
  };

  void SetUp() override { options_.directory = directory_.path(); }

  void add(unsigned depth = kDepth) {
    users_.push_back({std::make_unique<Process>(
        [&, depth](const Pipe& orders, const Pipe& answers) { use_device(options_, depth, orders, answers); })});
    hear(users_.size() - 1);
  }
  void hear(std::size_t id) {
    const int begun = users_[id].process->answers.get();
    users_[id].in_flight += begun;
    queue_.insert(queue_.end(), static_cast<std::size_t>(begun), id);
  }
  /// Serves pieces in the order of their beginning. A process that is stopped does not learn of the end of its own.
  void serve(int pieces) {
    for (User& user : users_) user.served = 0;
    for (; pieces > 0; --pieces) {
      ASSERT_FALSE(queue_.empty());
      const std::size_t id = queue_.front();
      queue_.pop_front();
      if (users_[id].stopped) continue;
      --users_[id].in_flight;
      ++users_[id].served;
      users_[id].process->orders.put('.');
      hear(id);
    }
  }
  void kill(std::size_t id) {
    users_[id].process->kill();
    users_[id].in_flight = 0;
    std::erase(queue_, id);
  }

  spillway::testing::TemporaryDirectory directory_;
  ShareOptions options_;
  std::vector<User> users_;
  std::deque<std::size_t> queue_;  ///< users, by piece in flight
};

TEST_F(ShareProcessTest, TwoGetTheSameBytes) {
  for (int i = 0; i < 2; ++i) add();
  serve(100);
  serve(kPieces);
  for (const User& user : users_) EXPECT_NEAR(user.served, kPieces / 2, kPieces / 2 * 0.02);
}

TEST_F(ShareProcessTest, FourGetTheSameBytes) {
  for (int i = 0; i < 4; ++i) add(i == 0 ? 64 : kDepth);
  serve(200);
  serve(kPieces);
  for (const User& user : users_) EXPECT_NEAR(user.served, kPieces / 4, kPieces / 4 * 0.02);
}

TEST_F(ShareProcessTest, WhatAKilledOneHeldGoesToTheOthers) {
  for (int i = 0; i < 3; ++i) add();
  serve(100);
  kill(0);
  serve(100);
  EXPECT_EQ(users_[1].in_flight, 8);
  EXPECT_EQ(users_[2].in_flight, 8);
  kill(1);
  serve(100);
  EXPECT_EQ(users_[2].in_flight, 16);
}

TEST_F(ShareProcessTest, AStoppedOneCostsItsPartAtMost) {
  add();
  users_[0].process->stop();
  users_[0].stopped = true;
  add();
  EXPECT_EQ(users_[0].in_flight, 16);
  EXPECT_EQ(users_[1].in_flight, 8);
  serve(kPieces);
  EXPECT_EQ(users_[1].in_flight, 8);
  users_[0].process->go_on();
  users_[0].stopped = false;
  queue_.insert(queue_.begin(), 16, 0);
  serve(100);
  serve(kPieces);
  for (const User& user : users_) EXPECT_NEAR(user.served, kPieces / 2, kPieces / 2 * 0.02);
}

TEST_F(ShareProcessTest, AStoppedOneThatWaitsBlocksNobody) {
  for (int i = 0; i < 3; ++i) add();
  serve(100);
  ASSERT_LT(users_[0].in_flight, 16);
  users_[0].process->stop();
  users_[0].stopped = true;
  serve(kPieces);
  EXPECT_GE(users_[1].in_flight, 5);
  EXPECT_GE(users_[2].in_flight, 5);
  users_[0].process->kill();
  serve(100);
  EXPECT_EQ(users_[1].in_flight + users_[2].in_flight, 16);
}

TEST_F(ShareProcessTest, SlotsOfKilledOnesAreUsedAgain) {
  for (unsigned i = 0; i < 3 * kShareSlots; ++i) {
    add(1);
    kill(i);
  }
  const Share share(kSharedDevice, options_);
  EXPECT_EQ(share.processes(), std::vector{static_cast<int>(::getpid())});
}

TEST_F(ShareProcessTest, AForkedChildHasNoPartInIt) {
  auto parent = std::make_unique<Share>(kSharedDevice, options_);
  Share other(kSharedDevice, options_);
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(parent->try_acquire(Direction::write, kPiece));
  EXPECT_EQ(spillway::testing::in_child([&] {
              parent.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(other.processes().size(), 2U);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(other.try_acquire(Direction::write, kPiece), i < 8);
}

/// With each order it takes and gives back as fast as it can for a while. Ends when it is refused while it holds
/// nothing.
void hammer(const ShareOptions& options, unsigned seed, const Pipe& orders, const Pipe& answers) {
  std::minstd_rand random(seed);
  Share share(kSharedDevice, options);
  std::array<std::deque<Bytes>, 2> taken;
  for (;;) {
    std::ignore = orders.get();
    for (auto turns = random() % 4096; turns > 0; --turns) {
      const auto direction = random() % 2 == 0 ? Direction::read : Direction::write;
      auto& mine = taken[direction == Direction::write ? 1 : 0];
      const Bytes bytes = 4 * KiB * (1 + random() % 256);
      if (random() % 8 < 5 && share.try_acquire(direction, bytes)) {
        mine.push_back(bytes);
      } else if (!mine.empty()) {
        share.release(direction, mine.front());
        mine.pop_front();
      } else if (share.try_acquire(direction, bytes)) {
        share.release(direction, bytes);
      } else {
        return;
      }
    }
    answers.put('.');
  }
}

class ShareHammerTest : public ShareProcessTest {
 protected:
  ShareHammerTest() {
    std::ranges::generate(crowd_, [this] { return begin(); });
  }

  std::unique_ptr<Process> begin() {
    return std::make_unique<Process>([&, seed = random_()](const Pipe& orders, const Pipe& answers) {
      options_.directory = directory_.path();
      hammer(options_, seed, orders, answers);
    });
  }
  /// All work; in the middle of that `interrupt` is done to one of them; the others must come to an end.
  template <class Interrupt>
  std::unique_ptr<Process>& one_round(Interrupt&& interrupt) {
    auto& victim = crowd_[random_() % crowd_.size()];
    for (const auto& process : crowd_) process->orders.put('.');
    for (volatile auto spin = random_() % 100000; spin > 0;) spin = spin - 1;
    interrupt(*victim);
    for (const auto& process : crowd_) {
      if (process != victim) std::ignore = process->answers.get();
    }
    return victim;
  }

  std::minstd_rand random_{1};
  std::array<std::unique_ptr<Process>, 4> crowd_;
};

TEST_F(ShareHammerTest, OneIsKilledAtAnyInstant) {
  for (int round = 0; round < 100; ++round) {
    one_round([](Process& victim) { victim.kill(); }) = begin();
  }
  for (auto& process : crowd_) process->kill();
  Share last(kSharedDevice, options_);
  EXPECT_EQ(last.processes().size(), 1U);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(last.try_acquire(Direction::write, kPiece));
}

/// A process may be stopped at any instant but while it joins, where others wait for it:
/// PathShare.OneThatWasStoppedWhileItJoinedKeepsNobodyWaiting.
TEST_F(ShareHammerTest, OneIsStoppedAtAnyInstant) {
  std::ignore = one_round([](Process&) {})->answers.get();
  for (int round = 0; round < 100; ++round) {
    const auto& victim = one_round([](Process& process) { process.stop(); });
    victim->go_on();
    std::ignore = victim->answers.get();
  }
}

}  // namespace
}  // namespace spillway::storage
