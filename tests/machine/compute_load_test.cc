#include "spillway/machine/compute_load.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "spillway/base/error.h"
#include "tests/sys/failing.h"

namespace spillway::machine {
namespace {

TEST(ComputeLoad, WorksWhileTheCallerDoes) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    int calls = 0;
    const auto rate = parts_per_second(threads, [&] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    EXPECT_EQ(calls, 1);
    EXPECT_GT(rate, 0) << threads;
  }
}

TEST(ComputeLoad, KeepsAShare) {
  bool worked = false;
  const auto share = share_beside(2, 0.02, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    worked = true;
  });
  EXPECT_TRUE(worked);
  EXPECT_GT(share, 0);
  EXPECT_LE(share, 1);
}

TEST(ComputeLoad, EndsWithWhatItsCallerThrows) {
  EXPECT_ERROR(std::ignore = share_beside(2, 0, [] { throw Error(ErrorCode::bad_input, "no work"); }),
               ErrorCode::bad_input, "no work");
}

}  // namespace
}  // namespace spillway::machine
