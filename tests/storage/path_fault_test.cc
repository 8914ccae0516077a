// What a path does when its drive, its kernel or its ring fails it.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
using sys::Operation;

class PathFault : public ::testing::Test {
 protected:
  void write(std::span<std::byte> memory, Bytes offset, std::string_view what = "") {
    path_.run(transfer_of(Direction::write, memory, offset, what));
  }
  void read(std::span<std::byte> memory, Bytes offset, std::string_view what = "") {
    path_.run(transfer_of(Direction::read, memory, offset, what));
  }
  /// Writes, spoils nothing more, reads back.
  void expect_round_trip(std::span<std::byte> memory, std::uint64_t seed) {
    fill(memory, seed);
    write(memory, 0);
    clear(memory);
    read(memory, 0);
    EXPECT_TRUE(is_filled(memory, seed));
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{16 * MiB};
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  Path path_{options_in(directory_.path()), sys::faulty(sys::make_ring, faults_)};
};

TEST_F(PathFault, NamesAFailedRead) {
  const auto memory = arena_.span().first(4 * MiB);
  write(memory, 0);
  faults_->fail(Operation::read, kFirstExtent + 2 * MiB, EIO);
  const auto error = spillway::testing::error_of([&] { read(memory, 0, "exp_avg_sq of layer 7"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::io);
  EXPECT_EQ(error->errno_value(), EIO);
  EXPECT_EQ(error->path(), path_.volume().string());
  const std::string message = error->what();
  for (const std::string& part :
       {std::string("exp_avg_sq of layer 7"), std::string("reading 1.0 MiB"), text("byte ", kFirstExtent + 2 * MiB),
        std::string("EIO"), std::string("another storage directory")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  read(memory, 0);
}

TEST_F(PathFault, AFailedWriteLeavesNothingToRead) {
  const auto memory = arena_.span().first(1 * MiB);
  write(memory, 0);
  faults_->fail(Operation::write, kFirstExtent, ENOSPC);
  const auto error = spillway::testing::error_of([&] { write(memory, 0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->errno_value(), ENOSPC);
  EXPECT_NE(std::string(error->what()).find("ran out of space"), std::string::npos) << error->what();
  EXPECT_ERROR(read(memory, 0), ErrorCode::internal, "where 0 bytes were written");
  write(memory, 0);
  read(memory, 0);
}

TEST_F(PathFault, OneFailureDoesNotTouchOtherTransfers) {
  Listener listener;
  faults_->fail(Operation::write, kFirstExtent + 5 * MiB, EIO);
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto transfer = transfer_of(Direction::write, arena_.span().subspan(i * 4 * MiB, 4 * MiB), i * 4 * MiB);
    listener.attach(transfer, i);
    path_.start(transfer);
  }
  path_.drain();
  EXPECT_EQ(listener.ended().size(), 4U);
  EXPECT_EQ(listener.errors().size(), 1U);
  read(arena_.span().first(4 * MiB), 0);
  EXPECT_ERROR(read(arena_.span().first(4 * MiB), 4 * MiB), ErrorCode::internal, "0 bytes were written");
}

TEST_F(PathFault, SeveralFailedPiecesEndATransferOnce) {
  Listener listener;
  for (Bytes piece = 0; piece < 3; ++piece) faults_->fail(Operation::write, kFirstExtent + piece * MiB, EIO);
  auto transfer = transfer_of(Direction::write, arena_.span().first(8 * MiB), 0);
  listener.attach(transfer, 1);
  path_.start(transfer);
  path_.drain();
  EXPECT_EQ(listener.ended().size(), 1U);
  EXPECT_EQ(path_.counters().read, 0U);
}

TEST_F(PathFault, InterruptedPiecesAreTriedAgain) {
  for (const Operation operation : {Operation::write, Operation::read}) {
    faults_->fail(operation, kFirstExtent, EINTR, 3);
    faults_->fail(operation, kFirstExtent + 1 * MiB, EAGAIN, 50);
  }
  expect_round_trip(arena_.span().first(3 * MiB), 1);
}

TEST_F(PathFault, EndlessRefusalEndsInAnError) {
  faults_->fail(Operation::write, kFirstExtent, EAGAIN, 1'000'000);
  EXPECT_ERROR(write(arena_.span().first(1 * MiB), 0), ErrorCode::io, "EAGAIN");
}

TEST_F(PathFault, ShortTransfersGoOn) {
  for (const Operation operation : {Operation::write, Operation::read}) {
    faults_->shorten(operation, kFirstExtent, 256 * KiB);
    faults_->shorten(operation, kFirstExtent + 256 * KiB, 4 * KiB);
    faults_->shorten(operation, kFirstExtent + 1 * MiB, 12 * KiB);
  }
  expect_round_trip(arena_.span().first(2 * MiB + 64 * KiB), 2);
}

TEST_F(PathFault, ShortTransfersGoOnFromAnAlignedPlace) {
  for (const Operation operation : {Operation::write, Operation::read}) {
    faults_->shorten(operation, kFirstExtent, 8 * KiB + 512);
    faults_->shorten(operation, kFirstExtent + 8 * KiB, 512, 3);
  }
  expect_round_trip(arena_.span().first(1 * MiB), 3);
  for (const sys::Piece& piece : faults_->submitted()) EXPECT_EQ(piece.offset % kTransferAlignment, 0U);
}

TEST_F(PathFault, AShortTransferThenAnErrorIsAnError) {
  faults_->shorten(Operation::write, kFirstExtent, 8 * KiB);
  faults_->fail(Operation::write, kFirstExtent + 8 * KiB, EIO);
  EXPECT_ERROR(write(arena_.span().first(1 * MiB), 0), ErrorCode::io, text("byte ", kFirstExtent));
}

TEST_F(PathFault, MovingNothingIsAnError) {
  const auto memory = arena_.span().first(1 * MiB);
  write(memory, 0);
  faults_->shorten(Operation::read, kFirstExtent, 0);
  EXPECT_ERROR(read(memory, 0, "weight"), ErrorCode::io, "stopped after 0 bytes");
  faults_->shorten(Operation::write, kFirstExtent, 512, 1'000'000);
  EXPECT_ERROR(write(memory, 0), ErrorCode::io, "stopped after 0 bytes");
}

TEST_F(PathFault, CompletionsMayComeLateAndInAnyOrder) {
  faults_->hold();
  Listener listener;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto memory = arena_.span().subspan(i * 4 * MiB, 4 * MiB);
    fill(memory, i);
    auto transfer = transfer_of(Direction::write, memory, i * 4 * MiB);
    listener.attach(transfer, i);
    path_.start(transfer);
  }
  faults_->await_held(16);
  EXPECT_TRUE(listener.ended().empty());
  faults_->release(sys::Faults::Order::reversed);
  path_.drain();
  EXPECT_EQ(listener.ended().size(), 4U);
  clear(arena_.span());
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto memory = arena_.span().subspan(i * 4 * MiB, 4 * MiB);
    read(memory, i * 4 * MiB);
    EXPECT_TRUE(is_filled(memory, i));
  }
}

TEST_F(PathFault, ASilentDriveIsSeenWhileItIsSilent) {
  EXPECT_EQ(path_.counters().under_way, 0U);
  EXPECT_EQ(path_.counters().silent_seconds, 0);
  faults_->hold();
  Listener listener;
  auto transfer = transfer_of(Direction::write, arena_.span().first(4 * MiB), 0);
  listener.attach(transfer, 0);
  path_.start(transfer);
  faults_->await_held(4);
  const auto first = path_.counters();
  EXPECT_EQ(first.under_way, 4U);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_GT(path_.counters().silent_seconds, first.silent_seconds);
  faults_->pass(1);
  while (path_.counters().under_way == 4) std::this_thread::yield();
  EXPECT_EQ(path_.counters().under_way, 3U);
  faults_->release();
  path_.drain();
  EXPECT_EQ(path_.counters().under_way, 0U);
  EXPECT_EQ(path_.counters().silent_seconds, 0);
}

TEST_F(PathFault, ReversedCompletionsEndTransfersInReverse) {
  faults_->hold();
  Listener listener;
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto transfer = transfer_of(Direction::write, arena_.span().subspan(i * MiB, 1 * MiB), i * MiB);
    transfer.deadline = i;
    listener.attach(transfer, i);
    path_.start(transfer);
    faults_->await_held(i + 1);
  }
  faults_->release(sys::Faults::Order::reversed);
  path_.drain();
  EXPECT_EQ(listener.ended(), (std::vector<std::uint64_t>{2, 1, 0}));
}

TEST_F(PathFault, ABrokenRingFailsEverythingAndStillCloses) {
  faults_->hold();
  Listener listener;
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto transfer = transfer_of(Direction::write, arena_.span().first(4 * MiB), 0);
    listener.attach(transfer, i);
    path_.start(transfer);
  }
  faults_->await_held(16);
  faults_->break_ring();
  path_.drain();
  EXPECT_EQ(listener.ended().size(), 6U);
  EXPECT_EQ(listener.errors().size(), 6U);
  EXPECT_ERROR(write(arena_.span().first(1 * MiB), 0), ErrorCode::io, "broken");
  EXPECT_FALSE(path_.register_memory(arena_.span()));
}

TEST_F(PathFault, RefusedRegistrationIsSpokenOf) {
  faults_->refuse_registration("Cannot allocate memory (ENOMEM)");
  EXPECT_FALSE(path_.register_memory(arena_.span()));
  EXPECT_NE(path_.notice().find("ENOMEM"), std::string::npos) << path_.notice();
  EXPECT_NE(path_.notice().find("ulimit -l"), std::string::npos) << path_.notice();
  expect_round_trip(arena_.span().first(2 * MiB), 4);
}

}  // namespace
}  // namespace spillway::storage
