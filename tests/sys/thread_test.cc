#include "spillway/sys/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

namespace spillway::sys {
namespace {

TEST(ServiceThreadTest, HasANameAndNoSignals) {
  std::string name(16, '\0');
  bool blocked = false;
  std::thread([&] {
    enter_service_thread("a-name-that-is-too-long");
    pthread_getname_np(pthread_self(), name.data(), name.size());
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
  }).join();
  EXPECT_STREQ(name.c_str(), "a-name-that-is-");
  EXPECT_TRUE(blocked);
}

TEST(ProcessCpuTest, GrowsWithWork) {
  const double before = process_cpu_seconds();
  volatile unsigned sum = 0;
  for (unsigned i = 0; i < 1'000'000; ++i) sum = sum + i;
  EXPECT_GT(process_cpu_seconds(), before);
}

TEST(ThreadPriority, IsLoweredForOneThreadUpToTheLowest) {
  const auto nice = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const auto own = nice();
  std::thread([&] {
    lower_priority(3);
    EXPECT_EQ(nice(), std::min(19, own + 3));
    lower_priority(40);
    EXPECT_EQ(nice(), 19);
  }).join();
  EXPECT_EQ(nice(), own);
}

}  // namespace
}  // namespace spillway::sys
