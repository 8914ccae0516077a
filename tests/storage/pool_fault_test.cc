// What a pool does when one of its paths fails it.
#include <cerrno>

#include "tests/storage/pool_fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

class PoolFault : public ::testing::Test {
 protected:
  Object object(Bytes bytes) {
    const auto memory = arena_.span().subspan(used_, bytes);
    used_ += bytes;
    return Object(memory);
  }

  void expect_message(const Error& error, const std::vector<std::string>& parts) {
    const std::string message = error.what();
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  }

  sys::Mapping arena_{64 * MiB};
  Bytes used_ = 0;
  PoolParts parts_{{16 * MiB, 16 * MiB, 16 * MiB}};
  std::vector<Outage> told_;
  std::mutex mutex_;

  PoolOptions options_ = {0, {}, [this](const Outage& outage) {
                            const std::lock_guard lock(mutex_);
                            told_.push_back(outage);
                          }};
};

TEST_F(PoolFault, WhatAPathRefusesGoesToAnother) {
  Pool pool(parts_.members(), options_);
  Object old = object(9 * MiB), one = object(12 * MiB);
  fill(old.memory, 1);
  old.write(pool);
  parts_.break_writes(1, EIO);
  fill(one.memory, 2);
  one.write(pool, "weight of layer 2");
  EXPECT_EQ(one.on(1), 0U);
  for (Object* object : {&old, &one}) clear(object->memory);
  old.read(pool);
  EXPECT_GT(old.on(1), 0U) << "what it holds is still read";
  EXPECT_TRUE(is_filled(old.memory, 1));
  one.read(pool);
  EXPECT_TRUE(is_filled(one.memory, 2));

  const auto outages = pool.outages();
  ASSERT_EQ(outages.size(), 1U);
  EXPECT_EQ(outages[0].path, 1U);
  EXPECT_EQ(outages[0].name, "drive1");
  EXPECT_EQ(outages[0].errno_value, EIO);
  EXPECT_EQ(outages[0].bytes, 4 * MiB);
  for (const char* part : {"path:drive1", "gets no more writes", "EIO", "weight of layer 2", "4.0 MiB"}) {
    EXPECT_NE(outages[0].reason.find(part), std::string::npos) << outages[0].reason;
  }
  pool.drain();
  EXPECT_EQ(told_.size(), 1U);
  EXPECT_FALSE(pool.paths()[1].writable);
}

TEST_F(PoolFault, APathTakenOutGetsNothingMore) {
  Pool pool(parts_.members(), options_);
  parts_.break_writes(0, ENOSPC, 1);
  Object first = object(6 * MiB), second = object(20 * MiB);
  first.write(pool);
  const auto submitted = parts_.faults(0).submitted().size();
  second.write(pool);
  EXPECT_EQ(parts_.faults(0).submitted().size(), submitted);
  EXPECT_EQ(pool.outages().size(), 1U);
  EXPECT_EQ(pool.outages()[0].errno_value, ENOSPC);
  EXPECT_EQ(pool.free(), 6 * MiB);
  pool.release(first.places);
  pool.release(second.places);
  EXPECT_EQ(pool.free(), 32 * MiB);
}

TEST_F(PoolFault, TwoPathsMayFail) {
  Pool pool(parts_.members(), options_);
  parts_.break_writes(0, EIO);
  parts_.break_writes(2, EROFS);
  Object one = object(12 * MiB);
  fill(one.memory, 3);
  one.write(pool);
  EXPECT_EQ(one.on(1), 12U);
  clear(one.memory);
  one.read(pool);
  EXPECT_TRUE(is_filled(one.memory, 3));
  EXPECT_EQ(pool.outages().size(), 2U);
}

TEST_F(PoolFault, WhenTheLastFailsEverythingIsNamed) {
  Pool pool(parts_.members(), options_);
  for (std::size_t path = 0; path < 3; ++path) parts_.break_writes(path, path == 0 ? EIO : ENOSPC);
  Object one = object(12 * MiB);
  const auto error = spillway::testing::error_of([&] { one.write(pool, "exp_avg of layer 5"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::io);
  EXPECT_TRUE(error->errno_value() == EIO || error->errno_value() == ENOSPC);
  expect_message(*error, {"exp_avg of layer 5", "12.0 MiB were to be written", "0 B are free", "path:drive0",
                          "path:drive1", "path:drive2", "EIO", "ENOSPC", "Give another storage directory"});
  EXPECT_EQ(pool.outages().size(), 3U);
  EXPECT_ERROR(one.write(pool), ErrorCode::io, "path:drive0");
}

TEST_F(PoolFault, AWriteTheRestCannotHoldIsRefused) {
  Pool pool(parts_.members(), options_);
  parts_.break_writes(0, EIO);
  Object small = object(3 * MiB), large = object(33 * MiB);
  small.write(pool);
  const auto error = spillway::testing::error_of([&] { large.write(pool, "the embedding"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::io);
  EXPECT_EQ(error->errno_value(), EIO);
  EXPECT_EQ(error->path(), "path:drive0");
  expect_message(*error, {"the embedding", "33.0 MiB were to be written", "29.0 MiB are free", "32.0 MiB in all"});
}

TEST_F(PoolFault, WhatMustBeHeldIsKnownAtOnce) {
  options_.needed = 40 * MiB;
  Pool pool(parts_.members(), options_);
  Object before = object(3 * MiB), one = object(3 * MiB);
  before.write(pool);
  parts_.break_writes(2, EIO);
  const auto error = spillway::testing::error_of([&] { one.write(pool); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), EIO);
  expect_message(*error, {"40.0 MiB must be held at once"});
  EXPECT_ERROR(one.write(pool), ErrorCode::io, "40.0 MiB must be held at once");
  EXPECT_EQ(pool.free(), 30 * MiB) << "the failed writes hold nothing";
  before.read(pool);
}

TEST_F(PoolFault, AnOutageWakesTheWritesItMakesHopeless) {
  Pool pool(parts_.members(), options_);
  Object full = object(47 * MiB), late = object(8 * MiB), small = object(1 * MiB);
  full.write(pool);
  Ends ends;
  late.start(pool, Direction::write, ends, 1, 5);
  for (std::uint32_t path = 0; path < 3; ++path) {
    EXPECT_TRUE(ends.ended().empty());
    pool.retire(path, EIO, "its flush failed");
  }
  ends.await(1);
  EXPECT_ERROR(ends.raise(0), ErrorCode::io, "its flush failed");
  pool.retire(0, EIO, "again");
  EXPECT_EQ(pool.outages().size(), 3U);
  EXPECT_ERROR(small.write(pool), ErrorCode::io, "path:drive0");
}

TEST_F(PoolFault, RefusedPiecesWaitForPlacesElsewhere) {
  int scarce = 0;
  options_.on_scarce = [&] {
    const std::lock_guard lock(mutex_);
    ++scarce;
  };
  Pool pool(parts_.members(), options_);
  Object full = object(42 * MiB), one = object(6 * MiB);
  full.write(pool);
  parts_.break_writes(2, EIO);
  fill(one.memory, 6);
  Ends ends;
  one.start(pool, Direction::write, ends, 1);
  while (pool.waiting() == 0) std::this_thread::yield();
  EXPECT_TRUE(ends.ended().empty());
  EXPECT_EQ(pool.waiting(), 2 * MiB);
  pool.release(std::span(full.places).first(3));
  pool.drain();
  ASSERT_EQ(ends.ended().size(), 1U);
  ends.raise(0);
  EXPECT_EQ(one.on(2), 0U);
  clear(one.memory);
  one.read(pool);
  EXPECT_TRUE(is_filled(one.memory, 6));
  EXPECT_EQ(scarce, 1);
}

TEST_F(PoolFault, WhatWaitsForNobodyIsRefusedAndTheRestGoesOn) {
  Pool pool(parts_.members(), options_);
  Object full = object(42 * MiB), one = object(6 * MiB), next = object(2 * MiB);
  fill(full.memory, 7);
  full.write(pool);
  EXPECT_EQ(pool.stalled(), 0U) << "nothing is under way";
  parts_.break_writes(2, EIO);
  Ends ends;
  one.start(pool, Direction::write, ends, 1);
  while (pool.stalled() == 0) std::this_thread::yield();
  next.start(pool, Direction::write, ends, 2, 1);
  EXPECT_EQ(pool.stalled(), 2U);
  EXPECT_TRUE(ends.ended().empty());
  pool.refuse_waiting();
  ends.await(2);
  for (const std::size_t end : {0U, 1U}) {
    const auto error = spillway::testing::error_of([&] { ends.raise(end); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::io);
    EXPECT_EQ(error->errno_value(), EIO);
    EXPECT_EQ(error->path(), "path:drive2");
    expect_message(*error, {"4.0 MiB more are lacking", "path:drive2 gets no more writes"});
  }
  pool.drain();
  EXPECT_EQ(pool.stalled(), 0U);
  EXPECT_EQ(pool.free(), 4 * MiB) << "what was refused holds nothing";
  next.write(pool);
  clear(full.memory);
  full.read(pool);
  EXPECT_TRUE(is_filled(full.memory, 7));
}

TEST_F(PoolFault, AFailedReadIsNamed) {
  Pool pool(parts_.members(), options_);
  Object one = object(6 * MiB);
  one.write(pool);
  const Place bad = one.places[3];
  parts_.faults(bad.path).fail(sys::Operation::read, kFirstExtent + bad.piece * MiB, EIO);
  const auto error = spillway::testing::error_of([&] { one.read(pool, "exp_avg_sq of layer 7"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), EIO);
  EXPECT_EQ(error->path(), parts_.path(bad.path).volume().string());
  expect_message(*error, {"exp_avg_sq of layer 7", text("byte ", kFirstExtent + bad.piece * MiB), "EIO"});
  EXPECT_TRUE(pool.outages().empty()) << "it can still be written";
  one.read(pool);
}

TEST_F(PoolFault, ABrokenRingIsAnOutage) {
  Pool pool(parts_.members(), options_);
  parts_.faults(1).hold();
  Object one = object(9 * MiB);
  fill(one.memory, 4);
  Ends ends;
  one.start(pool, Direction::write, ends, 1);
  parts_.faults(1).await_held(3);
  parts_.faults(1).break_ring();
  ends.await(1);
  ends.raise(0);
  EXPECT_EQ(one.on(1), 0U);
  clear(one.memory);
  one.read(pool);
  EXPECT_TRUE(is_filled(one.memory, 4));
  EXPECT_EQ(pool.outages().size(), 1U);
}

TEST_F(PoolFault, ClosingEndsRefusedPiecesToo) {
  Object full = object(42 * MiB), one = object(6 * MiB);
  Ends ends;
  {
    Pool pool(parts_.members(), options_);
    full.write(pool);
    parts_.break_writes(2, EIO);
    parts_.faults(2).hold();
    one.start(pool, Direction::write, ends, 1);
    parts_.faults(2).await_held(2);
    parts_.faults(2).release();
  }
  ASSERT_EQ(ends.ended().size(), 1U);
  EXPECT_ERROR(ends.raise(0), ErrorCode::io, "closed");
}

TEST_F(PoolFault, TheLastPathIsTold) {
  Pool pool(parts_.members(), options_);
  Object one = object(12 * MiB);
  one.write(pool);
  for (const std::uint32_t slow : {1U, 0U, 2U}) {
    ASSERT_GT(one.on(slow), 0U);
    parts_.faults(slow).hold();
    Ends ends;
    auto request = one.request(Direction::read);
    request.done = &Ends::done;
    request.context = &ends;
    std::uint32_t last = 99;
    request.last_path = &last;
    pool.start(request);
    for (std::uint32_t path = 0; path < 3; ++path) {
      while (path != slow && pool.paths()[path].queued > 0) std::this_thread::yield();
    }
    EXPECT_TRUE(ends.ended().empty());
    parts_.faults(slow).release();
    ends.await(1);
    EXPECT_EQ(last, slow);
    pool.drain();
  }
}

TEST_F(PoolFault, AStalledPathIsSpared) {
  Pool pool(parts_.members(), options_);
  parts_.faults(0).hold();
  Object held = object(12 * MiB);
  Ends ends;
  held.start(pool, Direction::write, ends, 0);
  parts_.faults(0).await_held(4);
  while (pool.paths()[1].queued + pool.paths()[2].queued > 0) std::this_thread::yield();
  Object next = object(4 * MiB);
  next.start(pool, Direction::write, ends, 1);
  ends.await(1);
  EXPECT_EQ(ends.ended(), (std::vector<std::uint64_t>{1})) << "it did not wait for the path that stands";
  EXPECT_EQ(next.on(0), 0U);
  parts_.faults(0).release();
  pool.drain();
}

}  // namespace
}  // namespace spillway::storage
