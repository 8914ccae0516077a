// Flushes: what they cover, whom they wait for, and what their failure means.
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "spillway/sys/power_cut.h"
#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
using sys::Operation;

class PathSync : public ::testing::Test {
 protected:
  static PathOptions shallow(const std::filesystem::path& directory) {
    PathOptions options = options_in(directory);
    options.queue_depth = 2;
    return options;
  }
  [[nodiscard]] std::size_t syncs_submitted() const {
    const auto pieces = faults_->submitted();
    return static_cast<std::size_t>(std::ranges::count(pieces, Operation::sync, &sys::Piece::operation));
  }
  Transfer write_of(Bytes extent, Bytes pieces) {
    return transfer_of(Direction::write, arena_.span().subspan(extent * MiB, pieces * MiB), extent * MiB);
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{16 * MiB};
  Listener listener_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  Path path_{shallow(directory_.path()), sys::faulty(sys::make_ring, faults_)};
};

TEST_F(PathSync, EndsAndIsCounted) {
  path_.run(write_of(0, 3));
  sync(path_);
  sync(path_);
  const Counters counters = path_.counters();
  EXPECT_EQ(counters.syncs, 2U);
  EXPECT_GT(counters.sync_seconds, 0);
  EXPECT_LE(counters.write_seconds, counters.busy_seconds);
  EXPECT_EQ(syncs_submitted(), 2U);
}

TEST_F(PathSync, DoesNotWaitForTransfers) {
  faults_->hold();
  auto transfer = write_of(0, 8);
  listener_.attach(transfer, 1);
  path_.start(transfer);
  faults_->await_submitted(2);
  path_.sync(&Listener::done, &listener_, 7);
  faults_->await_submitted(3);
  EXPECT_EQ(syncs_submitted(), 1U);
  faults_->release();
  path_.drain();
  EXPECT_EQ(listener_.ended().size(), 2U);
  EXPECT_TRUE(listener_.errors().empty());
}

TEST_F(PathSync, ThoseWhoAskDuringAFlushShareTheNext) {
  faults_->hold();
  path_.sync(&Listener::done, &listener_, 1);
  faults_->await_held(1);
  for (std::uint64_t token = 2; token <= 5; ++token) path_.sync(&Listener::done, &listener_, token);
  EXPECT_TRUE(listener_.ended().empty());
  faults_->release();
  path_.drain();
  EXPECT_EQ(listener_.ended(), (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(syncs_submitted(), 2U);
  EXPECT_EQ(path_.counters().syncs, 2U);
}

TEST_F(PathSync, MayBeAskedForFromDone) {
  struct Seen {
    Path* path;
    Listener* listener;
  } seen{&path_, &listener_};
  auto transfer = write_of(0, 1);
  transfer.context = &seen;
  transfer.done = [](void* context, std::uint64_t, const std::exception_ptr&) noexcept {
    auto& self = *static_cast<Seen*>(context);
    self.path->sync(&Listener::done, self.listener, 9);
  };
  path_.start(transfer);
  path_.drain();
  EXPECT_EQ(listener_.ended(), (std::vector<std::uint64_t>{9}));
}

TEST_F(PathSync, ServesSeveralThreadsWithTransfersBetween) {
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 10; ++round) {
        path_.run(write_of(t * 4, 2));
        sync(path_);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GE(path_.counters().syncs, 10U);
  EXPECT_LE(path_.counters().syncs, 30U);
  EXPECT_EQ(path_.counters().syncs, syncs_submitted());
}

TEST_F(PathSync, InterruptedFlushesAreTriedAgain) {
  faults_->fail(Operation::sync, 0, EINTR, 3);
  faults_->fail(Operation::sync, 0, EAGAIN, 20);
  sync(path_);
  EXPECT_EQ(syncs_submitted(), 24U);
  EXPECT_EQ(path_.counters().syncs, 1U);
}

TEST_F(PathSync, EndlessRefusalEndsInAnError) {
  faults_->fail(Operation::sync, 0, EAGAIN, 1'000'000);
  EXPECT_ERROR(sync(path_), ErrorCode::io, "EAGAIN");
}

TEST_F(PathSync, AFailureIsNamedAndRemembered) {
  path_.run(write_of(0, 1));
  faults_->fail(Operation::sync, 0, EIO);
  const auto error = spillway::testing::error_of([&] { sync(path_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::io);
  EXPECT_EQ(error->errno_value(), EIO);
  EXPECT_EQ(error->path(), path_.volume().string());
  for (const char* part : {"flushing", "EIO", "may be lost", "another storage directory"}) {
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
  }
  EXPECT_ERROR(sync(path_), ErrorCode::io, "EIO");
  EXPECT_EQ(syncs_submitted(), 1U);
  EXPECT_EQ(path_.counters().syncs, 0U);
  path_.run(transfer_of(Direction::read, arena_.span().first(1 * MiB), 0));
}

TEST_F(PathSync, ABrokenRingFailsThoseWhoWait) {
  faults_->hold();
  path_.sync(&Listener::done, &listener_, 1);
  faults_->await_held(1);
  path_.sync(&Listener::done, &listener_, 2);
  faults_->break_ring();
  path_.drain();
  EXPECT_EQ(listener_.errors().size(), 2U);
  EXPECT_ERROR(sync(path_), ErrorCode::io, "broken");
}

TEST_F(PathSync, SomebodyMustBeTold) {
  EXPECT_ERROR(path_.sync(nullptr, nullptr, 0), ErrorCode::internal, "nobody is told");
}

/// Which bytes of a path survive the machine's end.
class PathPower : public ::testing::Test {
 protected:
  static PathOptions options(const std::filesystem::path& directory) {
    PathOptions out = options_in(directory, 4 * MiB);
    out.metadata = 1 * MiB;
    return out;
  }
  void write(Bytes offset, std::uint64_t seed, Area area = Area::data) {
    const auto memory = arena_.span().first(area == Area::data ? 1 * MiB : 4 * KiB);
    fill(memory, seed);
    auto transfer = transfer_of(Direction::write, memory, offset);
    transfer.area = area;
    path_.run(transfer);
  }
  [[nodiscard]] std::vector<std::byte> image(std::uint64_t seed) const {
    return power_->image(path_.volume(), seed).whole();
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{4 * MiB};
  std::shared_ptr<sys::PowerCut> power_ = std::make_shared<sys::PowerCut>();
  Path path_{options(directory_.path()), sys::power_cut(sys::make_thread_ring, power_)};
};

TEST_F(PathPower, AFlushedWriteIsThereAnUnflushedOneNeedNotBe) {
  write(0, 1);
  write(4 * KiB, 2, Area::metadata);
  sync(path_);
  write(1 * MiB, 3);
  const auto least = image(sys::PowerCut::kNothing);
  const std::span bytes(least);
  EXPECT_TRUE(is_filled(bytes.subspan(2 * MiB, 1 * MiB), 1));
  EXPECT_TRUE(is_filled(bytes.subspan(1 * MiB + 4 * KiB, 4 * KiB), 2));
  EXPECT_FALSE(is_filled(bytes.subspan(3 * MiB, 1 * MiB), 3));
  const auto most = image(sys::PowerCut::kEverything);
  EXPECT_TRUE(is_filled(std::span(most).subspan(3 * MiB, 1 * MiB), 3));
}

TEST_F(PathPower, AfterTheCutEverythingEndsInErrors) {
  write(0, 1);
  power_->cut_after(power_->events());
  EXPECT_ERROR(write(0, 2), ErrorCode::io, "EIO");
  EXPECT_ERROR(sync(path_), ErrorCode::io, "EIO");
}

TEST_F(PathPower, TheNextLifeReadsWhatWasFlushed) {
  write(0, 1);
  sync(path_);
  const PieceMark mark = path_.mark(0);
  write(0, 2);
  const TemporaryDirectory next;
  const auto found = image(sys::PowerCut::kNothing);
  sys::File(next.path() / "spillway.volume", {.write = true, .create = true}).write(found, 0);
  PathOptions again = options(next.path());
  again.reopen = true;
  Path path(again);
  path.expect(0, mark);
  path.run(transfer_of(Direction::read, arena_.span().first(1 * MiB), 0));
  EXPECT_TRUE(is_filled(arena_.span().first(1 * MiB), 1));
}

}  // namespace
}  // namespace spillway::storage
