// Vector clocks: which accesses have an order, and that the account stays small.
#include "tests/device/happens_before.h"

#include <gtest/gtest.h>

#include <array>

namespace spillway::device::fake {
namespace {

constexpr auto kHost = HappensBefore::kHost;

class HappensBeforeTest : public ::testing::Test {
 protected:
  std::string read(Participant by, std::size_t first, std::size_t count) { return access(by, first, count, false); }
  std::string write(Participant by, std::size_t first, std::size_t count) { return access(by, first, count, true); }

  HappensBefore order_;
  const Participant one_ = order_.add_stream(), two_ = order_.add_stream(), three_ = order_.add_stream();

 private:
  std::string access(Participant by, std::size_t first, std::size_t count, bool writes) {
    const Range range{memory_.data() + first, count, writes};
    return order_.run(by, writes ? "writer" : "reader", {&range, 1});
  }

  std::array<std::byte, 1024> memory_{};
};

TEST_F(HappensBeforeTest, AStreamIsInOrder) {
  EXPECT_EQ(write(one_, 0, 64), "");
  EXPECT_EQ(read(one_, 32, 64), "");
  EXPECT_EQ(write(one_, 0, 128), "");
}

TEST_F(HappensBeforeTest, TwoStreamsThatShareAByteRaceWhereOneWrites) {
  EXPECT_EQ(read(one_, 0, 64), "");
  EXPECT_EQ(read(two_, 0, 64), "");
  EXPECT_EQ(write(two_, 64, 64), "");  // beside it
  const auto race = write(three_, 63, 4);
  EXPECT_NE(race.find("writer (stream 3), which writes 4 bytes"), std::string::npos) << race;
  EXPECT_NE(race.find("reader (stream 1), which reads 64 bytes"), std::string::npos) << race;
  EXPECT_NE(race.find("1 bytes are in both"), std::string::npos) << race;
}

TEST_F(HappensBeforeTest, AnEventGivesAnOrder) {
  EXPECT_EQ(write(one_, 0, 64), "");
  const auto event = order_.record(one_);
  order_.wait(two_, event);
  EXPECT_EQ(write(two_, 0, 64), "");
  EXPECT_NE(read(three_, 0, 64), "");
}

TEST_F(HappensBeforeTest, AnEventDoesNotHoldWhatComesAfterIt) {
  const auto event = order_.record(one_);
  EXPECT_EQ(write(one_, 0, 64), "");
  order_.wait(two_, event);
  EXPECT_NE(read(two_, 0, 64), "");
}

TEST_F(HappensBeforeTest, OrderGoesThroughAThirdStream) {
  EXPECT_EQ(write(one_, 0, 64), "");
  order_.wait(two_, order_.record(one_));
  order_.wait(three_, order_.record(two_));
  EXPECT_EQ(write(three_, 0, 64), "");
}

TEST_F(HappensBeforeTest, AWaitOfTheHostHoldsForAllThatItGivesLater) {
  EXPECT_EQ(write(one_, 0, 64), "");
  EXPECT_NE(write(kHost, 0, 64), "");
  order_.wait(kHost, order_.record(one_));
  EXPECT_EQ(write(kHost, 0, 64), "");
  EXPECT_EQ(read(two_, 0, 64), "");
}

TEST_F(HappensBeforeTest, AReaderIsNotForgottenForAnotherStreamsRead) {
  EXPECT_EQ(write(one_, 0, 64), "");
  order_.wait(two_, order_.record(one_));
  EXPECT_EQ(read(two_, 0, 64), "");
  order_.wait(three_, order_.record(one_));
  EXPECT_NE(write(three_, 0, 64), "");
}

TEST_F(HappensBeforeTest, AWriterIsNotForgottenForALaterRead) {
  EXPECT_EQ(write(one_, 0, 64), "");
  EXPECT_EQ(read(one_, 0, 64), "");
  EXPECT_NE(read(two_, 0, 64), "");
}

TEST_F(HappensBeforeTest, AStreamIsIdleWhenTheHostHasWaitedForAllOfIt) {
  EXPECT_TRUE(order_.is_idle(one_));
  EXPECT_EQ(write(one_, 0, 64), "");
  const auto event = order_.record(one_);
  EXPECT_EQ(write(one_, 64, 64), "");
  order_.wait(kHost, event);
  EXPECT_FALSE(order_.is_idle(one_));
  order_.wait(kHost, order_.record(one_));
  EXPECT_TRUE(order_.is_idle(one_));
}

TEST_F(HappensBeforeTest, AnEventStandsForWhatTheHostHasNotWaitedFor) {
  EXPECT_EQ(write(one_, 0, 64), "");
  const auto event = order_.record(one_);
  EXPECT_TRUE(order_.stands_for(event, "write"));
  EXPECT_FALSE(order_.stands_for(event, "read"));
  order_.wait(kHost, event);
  EXPECT_FALSE(order_.stands_for(event, "write"));
}

TEST_F(HappensBeforeTest, TheAccountStaysSmall) {
  for (int i = 0; i < 10000; ++i) {
    EXPECT_EQ(write(one_, 64 * (i % 4), 64), "");
    order_.wait(two_, order_.record(one_));
    EXPECT_EQ(read(two_, 64 * (i % 4), 32), "");
    order_.wait(one_, order_.record(two_));
  }
  EXPECT_LE(order_.size(), 8U);
  order_.wait(kHost, order_.record(two_));
  EXPECT_EQ(read(three_, 512, 1), "");
  EXPECT_EQ(order_.size(), 1U);
}

}  // namespace
}  // namespace spillway::device::fake
