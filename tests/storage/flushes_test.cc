#include "spillway/storage/flushes.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/storage/piece.h"

namespace spillway::storage {
namespace {

/// Flushes of a volume, and the tokens of the requests that have ended.
class FlushesTest : public ::testing::Test {
 protected:
  struct Ended {
    std::vector<std::uint64_t> well, failed;
  };

  void ask(std::uint64_t token) {
    std::vector<FlushRequest> incoming{{&FlushesTest::note, &ended_, token}};
    flushes_.take(incoming);
    EXPECT_TRUE(incoming.empty());
  }
  static void note(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
    auto& ended = *static_cast<Ended*>(context);
    (error ? ended.failed : ended.well).push_back(token);
  }

  const std::filesystem::path volume_ = "spillway.volume";
  Meter meter_;
  Flushes flushes_{volume_, meter_, 4};
  Ended ended_;
};

using Tokens = std::vector<std::uint64_t>;

TEST_F(FlushesTest, OneFlushServesAllWhoAskedBeforeItBegan) {
  EXPECT_FALSE(flushes_.begin());
  ask(1);
  ask(2);
  EXPECT_TRUE(flushes_.waiting());
  EXPECT_TRUE(flushes_.begin());
  ask(3);
  EXPECT_FALSE(flushes_.waiting());
  EXPECT_FALSE(flushes_.begin());
  EXPECT_EQ(flushes_.settle(), 0U);
  EXPECT_FALSE(flushes_.judge(0));
  EXPECT_EQ(flushes_.settle(), 2U);
  EXPECT_EQ(ended_.well, (Tokens{1, 2}));
  EXPECT_TRUE(flushes_.begin());
  EXPECT_FALSE(flushes_.judge(0));
  EXPECT_EQ(flushes_.settle(), 1U);
  EXPECT_EQ(ended_.well, (Tokens{1, 2, 3}));
  EXPECT_EQ(meter_.counters().syncs, 2U);
}

TEST_F(FlushesTest, InterruptedFlushIsSubmittedAgainAThousandTimesAtMost) {
  ask(1);
  ASSERT_TRUE(flushes_.begin());
  for (std::uint32_t i = 1; i < kMostFruitless; ++i) ASSERT_TRUE(flushes_.judge(-EINTR));
  EXPECT_FALSE(flushes_.judge(-EINTR));
  EXPECT_EQ(flushes_.settle(), 1U);
  EXPECT_EQ(ended_.failed, (Tokens{1}));
}

TEST_F(FlushesTest, NoFlushBeginsAfterOneHasFailed) {
  ask(1);
  ASSERT_TRUE(flushes_.begin());
  ask(2);
  EXPECT_FALSE(flushes_.judge(-EIO));
  EXPECT_EQ(flushes_.settle(), 1U);
  EXPECT_FALSE(flushes_.begin());
  EXPECT_EQ(flushes_.settle(), 1U);
  EXPECT_EQ(ended_.failed, (Tokens{1, 2}));
  EXPECT_TRUE(ended_.well.empty());
}

TEST_F(FlushesTest, EndOfThePathEndsThoseWhoAreServedAndThoseWhoWait) {
  ask(1);
  ASSERT_TRUE(flushes_.begin());
  ask(2);
  EXPECT_EQ(flushes_.fail(std::make_exception_ptr(Error(ErrorCode::io, "the ring failed"))), 2U);
  EXPECT_EQ(ended_.failed, (Tokens{1, 2}));
}

}  // namespace
}  // namespace spillway::storage
