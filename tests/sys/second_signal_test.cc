#include "spillway/sys/second_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/sys/child.h"
#include "tests/sys/failing.h"

namespace spillway::sys {
namespace {

using testing::in_child;

constexpr std::array kSignals = {SIGUSR1, SIGUSR2};

volatile sig_atomic_t first_handled = 0;

void count(int /*number*/) {
  first_handled = first_handled + 1;
}

/// What a child writes to standard error.
class Heard {
 public:
  Heard() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Heard() { ::close(ends_[0]); }
  void take_over() const { ::dup2(ends_[1], STDERR_FILENO); }
  std::string all() {
    ::close(ends_[1]);
    std::array<char, 1024> bytes{};
    const ssize_t count = ::read(ends_[0], bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }

 private:
  std::array<int, 2> ends_{};
};

TEST(SecondSignalTest, TheFirstGoesToTheHandlerTheSecondEndsTheProcess) {
  Heard heard;
  const int status = in_child([&] {
    heard.take_over();
    ::signal(SIGUSR1, count);
    ::signal(SIGUSR2, count);
    SecondSignal second(kSignals, "not these words");
    second.say("all is lost\n");
    ::raise(SIGUSR1);
    if (first_handled != 1) return 1;
    ::raise(SIGUSR2);
    return 2;
  });
  EXPECT_EQ(status, 128 + SIGUSR2);
  EXPECT_EQ(heard.all(), "all is lost\n");
}

TEST(SecondSignalTest, PutsTheHandlersBack) {
  const int status = in_child([] {
    ::signal(SIGUSR1, count);
    { const SecondSignal second(kSignals, ""); }
    for (int i = 0; i < 3; ++i) ::raise(SIGUSR1);
    return first_handled == 3 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(SecondSignalTest, WhatIsIgnoredStaysIgnored) {
  const int status = in_child([] {
    ::signal(SIGUSR1, SIG_IGN);
    const SecondSignal second(kSignals, "");
    for (int i = 0; i < 3; ++i) ::raise(SIGUSR1);
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(SecondSignalTest, OneWithoutAHandlerEndsTheProcessAtOnce) {
  EXPECT_EQ(in_child([] {
              ::signal(SIGUSR1, SIG_DFL);
              const SecondSignal second(kSignals, "");
              ::raise(SIGUSR1);
              return 0;
            }),
            -1);
}

TEST(SecondSignalTest, ThereIsOne) {
  const SecondSignal second(kSignals, "");
  EXPECT_ERROR(SecondSignal(kSignals, ""), ErrorCode::internal, "second signal");
}

}  // namespace
}  // namespace spillway::sys
