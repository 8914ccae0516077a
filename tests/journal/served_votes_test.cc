#include "spillway/journal/served_votes.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

/// Votes, and remembers what it was told.
class ServedVotesTest : public ::testing::Test {
 protected:
  void vote(std::int64_t step) {
    votes_.vote(step, [this](std::int64_t minimum, const std::exception_ptr& error) {
      told_.push_back(error ? words_of(error) : std::to_string(minimum));
    });
  }
  static std::string words_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& it) {
      return it.what();
    }
  }
  using Told = std::vector<std::string>;

  ServedVotes votes_;
  Told told_;
};

TEST_F(ServedVotesTest, AVoteIsTakenOnceAndAnswered) {
  vote(7);
  EXPECT_EQ(votes_.next(), 7);
  EXPECT_TRUE(told_.empty());
  votes_.end(7, 6);
  EXPECT_EQ(told_, Told{"6"});
  EXPECT_ERROR(votes_.end(7, 6), ErrorCode::bad_input, "step 7 was not taken, or has ended");
  vote(8);
  EXPECT_ERROR(votes_.end(8, 8), ErrorCode::bad_input, "was not taken");
  EXPECT_EQ(votes_.next(), 8);
  votes_.end(8, 0, "rank 2 is gone");
  EXPECT_EQ(told_, (Told{"6", "rank 2 is gone"}));
}

TEST_F(ServedVotesTest, OneIsUnderWayAtATime) {
  vote(1);
  EXPECT_ERROR(vote(2), ErrorCode::internal, "while another is under way");
  votes_.close();
}

TEST_F(ServedVotesTest, TheAnswerToOneThatWasCancelledIsPassedOver) {
  vote(3);
  EXPECT_EQ(votes_.next(), 3);
  votes_.cancel();
  EXPECT_EQ(told_, Told{"the vote was given up on this shard"});
  vote(4);
  votes_.end(3, 3);
  EXPECT_EQ(told_.size(), 1U);
  EXPECT_EQ(votes_.next(), 4);
  votes_.end(4, 4);
  EXPECT_EQ(told_.back(), "4");
  votes_.cancel();  // nothing is under way
  EXPECT_EQ(told_.size(), 2U);
}

TEST_F(ServedVotesTest, ClosingLetsGoWhoWaits) {
  std::thread serving([&] { EXPECT_EQ(votes_.next(), std::nullopt); });
  votes_.close();
  serving.join();
  vote(5);
  EXPECT_EQ(told_, Told{"votes are closed"});
}

TEST_F(ServedVotesTest, ClosingEndsTheVoteUnderWay) {
  vote(5);
  EXPECT_EQ(votes_.next(), 5);
  votes_.close();
  EXPECT_EQ(told_, Told{"votes were closed before the other shards had answered"});
  votes_.end(5, 5);
  EXPECT_EQ(told_.size(), 1U);
}

}  // namespace
}  // namespace spillway::journal
