#include "spillway/storage/turns.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

constexpr Bytes kTurn = kExtentAlignment;

/// Adds one transfer of so many pieces.
void add(Queue& queue, Direction direction, Bytes pieces, std::uint64_t deadline) {
  queue.add({.direction = direction, .bytes = pieces * kTurn, .deadline = deadline});
}

/// The pieces that begin, until none may: r or w for each.
std::string take_all(Turns& turns, Queue& queue) {
  std::string out;
  while (const auto direction = turns.next(queue)) {
    static_cast<void>(queue.take(*direction));
    out += *direction == Direction::read ? 'r' : 'w';
  }
  return out;
}

TEST(Turns, MoreUrgentDirectionHasHalfOfTheDepthFirst) {
  Queue queue(kTurn, 4);
  add(queue, Direction::read, 9, 2);
  add(queue, Direction::write, 9, 1);
  Turns turns(5, kTurn, nullptr);
  EXPECT_EQ(take_all(turns, queue), "wwwrr");
  EXPECT_TRUE(turns.full());
}

TEST(Turns, DirectionThatWaitsAloneHasTheWholeDepth) {
  Queue queue(kTurn, 4);
  add(queue, Direction::write, 9, 1);
  Turns turns(4, kTurn, nullptr);
  EXPECT_EQ(take_all(turns, queue), "wwww");
}

TEST(Turns, EndOfAPieceGivesItsTurnBack) {
  Queue queue(kTurn, 4);
  add(queue, Direction::read, 9, 1);
  add(queue, Direction::write, 9, 2);
  Turns turns(4, kTurn, nullptr);
  ASSERT_EQ(take_all(turns, queue), "rrww");
  turns.end(Direction::write);
  EXPECT_EQ(turns.in_flight(), 3U);
  EXPECT_EQ(take_all(turns, queue), "w");
}

TEST(Turns, DirectionThatTheShareRefusesLeavesItsTurnToTheOther) {
  const spillway::testing::TemporaryDirectory directory;
  const ShareOptions options{.read_budget = 16 * kTurn, .write_budget = 2 * kTurn, .directory = directory.path()};
  Share other({240, 7}, options);
  ASSERT_TRUE(other.try_acquire(Direction::write, kTurn));
  Queue queue(kTurn, 4);
  add(queue, Direction::write, 9, 1);
  add(queue, Direction::read, 9, 2);
  Turns turns(6, kTurn, std::make_unique<Share>(sys::DeviceId{240, 7}, options));
  EXPECT_EQ(take_all(turns, queue), "wrrrrr");
  other.release(Direction::write, kTurn);
  turns.end(Direction::read);
  EXPECT_EQ(take_all(turns, queue), "r") << "the share is not asked before renew()";
  turns.end(Direction::read);
  turns.renew();
  EXPECT_EQ(take_all(turns, queue), "w");
}

}  // namespace
}  // namespace spillway::storage
