// Deadlines: which piece goes next. A gate keeps completions back, so that the order of submission is the queue's
// alone.
#include <gtest/gtest.h>

#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

class PathOrder : public ::testing::Test {
 protected:
  PathOrder() { faults_->hold(); }

  static PathOptions shallow(const std::filesystem::path& directory) {
    auto options = options_in(directory);
    options.queue_depth = 2;
    return options;
  }
  void start(Bytes extent, Bytes pieces, std::uint64_t deadline) {
    auto transfer = transfer_of(Direction::write, arena_.span().subspan(extent * MiB, pieces * MiB), extent * MiB);
    transfer.deadline = deadline;
    listener_.attach(transfer, extent);
    path_.start(transfer);
  }
  /// Opens the gate and gives the extents' numbers in the order in which their pieces went to the ring.
  std::vector<Bytes> finish() {
    faults_->release();
    path_.drain();
    std::vector<Bytes> order;
    for (const sys::Piece& piece : faults_->submitted()) order.push_back((piece.offset - kFirstExtent) / MiB);
    return order;
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{32 * MiB};
  Listener listener_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  Path path_{shallow(directory_.path()), sys::faulty(sys::make_ring, faults_)};
};

TEST_F(PathOrder, ALateUrgentTransferWaitsForThePiecesInFlightOnly) {
  start(0, 6, 50);
  faults_->await_submitted(2);
  start(20, 2, 1);
  EXPECT_EQ(finish(), (std::vector<Bytes>{0, 1, 20, 21, 2, 3, 4, 5}));
  EXPECT_EQ(listener_.ended(), (std::vector<std::uint64_t>{20, 0}));
}

TEST_F(PathOrder, EarliestDeadlineFirstWhateverTheArrival) {
  start(0, 2, 0);
  faults_->await_submitted(2);
  start(8, 1, 30);
  start(4, 1, 10);
  start(6, 1, 20);
  EXPECT_EQ(finish(), (std::vector<Bytes>{0, 1, 4, 6, 8}));
}

TEST_F(PathOrder, EqualDeadlinesInOrderOfArrival) {
  start(0, 2, 7);
  faults_->await_submitted(2);
  for (const Bytes extent : {9, 3, 5, 4}) start(extent, 1, 7);
  EXPECT_EQ(finish(), (std::vector<Bytes>{0, 1, 9, 3, 5, 4}));
}

TEST_F(PathOrder, NoMoreThanTheDepthIsInFlight) {
  start(0, 8, 1);
  faults_->await_held(2);
  EXPECT_EQ(faults_->submitted().size(), 2U);
  EXPECT_EQ(finish().size(), 8U);
}

TEST_F(PathOrder, AFailedTransferGivesWayAtOnce) {
  faults_->fail(sys::Operation::write, kFirstExtent, EIO);
  start(0, 8, 1);
  faults_->await_submitted(2);
  start(16, 1, 2);
  EXPECT_EQ(finish(), (std::vector<Bytes>{0, 1, 16}));
  EXPECT_EQ(listener_.errors().size(), 1U);
}

}  // namespace
}  // namespace spillway::storage
