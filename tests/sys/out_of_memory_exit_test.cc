#include "spillway/sys/out_of_memory_exit.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>

#include "spillway/base/error.h"
#include "tests/sys/child.h"

namespace spillway::sys {
namespace {

using testing::in_child;
using ::testing::KilledBySignal;

constexpr int kCode = 3;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kHandlersTakeMemory = true;  // a sanitizer's, where a signal arrives
#else
constexpr bool kHandlersTakeMemory = false;
#endif

/// From now on the kernel gives this process no memory.
void bound() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_DATA, &none);
}

class OutOfMemoryExitTest : public ::testing::TestWithParam<int> {};

TEST_P(OutOfMemoryExitTest, ACrashWithoutMemoryEndsWithTheCode) {
  if (kHandlersTakeMemory) GTEST_SKIP() << "a sanitizer takes memory where a signal arrives";
  const int status = in_child([&] {
    const OutOfMemoryExit exit("there is no memory\n", kCode);
    bound();
    ::raise(GetParam());
    return 1;
  });
  EXPECT_EQ(status, kCode);
}

TEST_P(OutOfMemoryExitTest, AnyOtherCrashEndsTheProcessAsWithout) {
  const auto crash = [] {
    ::signal(GetParam(), SIG_DFL);
    const OutOfMemoryExit exit("there is no memory\n", kCode);
    ::raise(GetParam());
  };
  EXPECT_EXIT(crash(), KilledBySignal(GetParam()), "");
}

TEST(OutOfMemoryExit, AFaultWithMemoryIsAFault) {
  const auto fault = [] {
    ::signal(SIGSEGV, SIG_DFL);
    const OutOfMemoryExit exit("there is no memory\n", kCode);
    // A null pointer would end in a sanitizer instead.
    *static_cast<volatile int*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) = 1;
  };
  EXPECT_EXIT(fault(), KilledBySignal(SIGSEGV), "");
}

TEST_P(OutOfMemoryExitTest, AHandlerFromBeforeIsPutBack) {
  if (kHandlersTakeMemory) GTEST_SKIP() << "a sanitizer takes memory where a signal arrives";
  const int status = in_child([&] {
    ::signal(GetParam(), [](int) { ::_exit(7); });
    { const OutOfMemoryExit exit("there is no memory\n", kCode); }
    bound();
    ::raise(GetParam());
    return 1;
  });
  EXPECT_EQ(status, 7);
}

TEST_P(OutOfMemoryExitTest, ACrashWithMemoryReachesTheHandlerFromBefore) {
  const int status = in_child([&] {
    ::signal(GetParam(), [](int) { ::_exit(7); });
    const OutOfMemoryExit exit("there is no memory\n", kCode);
    ::raise(GetParam());
    return 1;
  });
  EXPECT_EQ(status, 7);
}

INSTANTIATE_TEST_SUITE_P(Crashes, OutOfMemoryExitTest, ::testing::Values(SIGSEGV, SIGBUS, SIGABRT));

TEST(OutOfMemoryExit, ThereIsOneAtATime) {
  const OutOfMemoryExit exit("", kCode);
  EXPECT_THROW(OutOfMemoryExit("", kCode), Error);
}

}  // namespace
}  // namespace spillway::sys
