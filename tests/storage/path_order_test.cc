// Deadlines: which piece goes next. A gate keeps completions back, so that the order of submission is the queue's
// alone.
#include <gtest/gtest.h>

#include <string>

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
  EXPECT_EQ(listener_.ended().size(), 2U) << "which ends first is the drive's business";
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

/// Reads and writes at once, on a path of which a test lets one piece at a time complete.
class PathBudgets : public ::testing::Test {
 protected:
  void open(unsigned depth) {
    auto options = options_in(directory_.path());
    options.queue_depth = depth;
    options.metadata = 1 * MiB;
    path_ = std::make_unique<Path>(options, sys::faulty(sys::make_ring, faults_));
    for (Bytes extent = 0; extent < 32; ++extent) path_->expect(extent * MiB, {0, 1 * MiB});
    faults_->hold();
  }
  /// `pieces` transfers of one piece, at extents from `extent` on.
  void start(Direction direction, Bytes extent, Bytes pieces, std::uint64_t deadline, Area area = Area::data) {
    for (Bytes i = 0; i < pieces; ++i) {
      const Bytes bytes = area == Area::data ? 1 * MiB : 4 * KiB;
      auto transfer = transfer_of(direction, arena_.span().subspan((extent + i) * MiB, bytes),
                                  (extent + i) * (area == Area::data ? 1 * MiB : 4 * KiB));
      transfer.deadline = deadline;
      transfer.area = area;
      listener_.attach(transfer, extent + i);
      path_->start(transfer);
    }
  }
  /// A letter for each piece submitted: r or w, large for metadata.
  [[nodiscard]] std::string order() const {
    std::string letters;
    for (const sys::Piece& piece : faults_->submitted()) {
      const bool data = piece.offset >= 2 * MiB;
      letters += piece.operation == sys::Operation::read ? (data ? 'r' : 'R') : (data ? 'w' : 'W');
    }
    return letters;
  }
  /// Lets the longest held complete and waits for the piece that takes its place.
  void step() {
    faults_->await_held(1);
    const std::size_t before = faults_->submitted().size();
    faults_->pass(1);
    faults_->await_submitted(before + 1);
  }
  void finish() {
    faults_->release();
    path_->drain();
    EXPECT_TRUE(listener_.errors().empty());
  }

  TemporaryDirectory directory_;
  sys::Mapping arena_{32 * MiB};
  Listener listener_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  std::unique_ptr<Path> path_;
};

TEST_F(PathBudgets, ALoneDirectionUsesTheWholeDepth) {
  open(4);
  start(Direction::read, 0, 8, 1);
  faults_->await_held(4);
  EXPECT_EQ(order(), "rrrr");
  finish();
  EXPECT_EQ(order(), "rrrrrrrr");
}

TEST_F(PathBudgets, AWaitingDirectionGetsItsHalfHoweverUrgentTheOther) {
  open(4);
  start(Direction::read, 0, 12, 1);
  faults_->await_held(4);
  start(Direction::write, 16, 12, 50);
  for (int i = 0; i < 2; ++i) step();
  EXPECT_EQ(order(), "rrrrww");
  for (int i = 0; i < 2; ++i) step();  // two reads end: the writes have their half
  EXPECT_EQ(order(), "rrrrwwrr");
  finish();
}

TEST_F(PathBudgets, SoDoReadsBehindWrites) {
  open(4);
  start(Direction::write, 0, 12, 1);
  faults_->await_held(4);
  start(Direction::read, 16, 12, 50);
  for (int i = 0; i < 2; ++i) step();
  EXPECT_EQ(order(), "wwwwrr");
  for (int i = 0; i < 2; ++i) step();
  EXPECT_EQ(order(), "wwwwrrww");
  finish();
}

TEST_F(PathBudgets, TheOddPieceGoesToTheMoreUrgent) {
  for (const bool urgent_reads : {true, false}) {
    faults_ = std::make_shared<sys::Faults>();
    open(3);
    start(Direction::write, 0, 12, 10);
    faults_->await_held(3);
    start(Direction::read, 16, 12, urgent_reads ? 5 : 50);
    step();
    step();  // one write is left of the first three
    EXPECT_EQ(order(), urgent_reads ? "wwwrr" : "wwwrw");
    finish();
    path_.reset();
  }
}

TEST_F(PathBudgets, OneAtATimeGoesByUrgencyAlone) {
  open(1);
  start(Direction::write, 0, 1, 0);
  faults_->await_held(1);
  start(Direction::write, 8, 2, 30);
  start(Direction::read, 16, 1, 40);
  start(Direction::read, 20, 1, 10);
  finish();
  EXPECT_EQ(order(), "wrwwr");
}

TEST_F(PathBudgets, AtEqualDeadlinesMetadataThenReadsThenWrites) {
  open(1);
  start(Direction::write, 0, 1, 7);
  faults_->await_held(1);
  start(Direction::write, 1, 1, 7);
  start(Direction::read, 2, 1, 7);
  start(Direction::write, 3, 1, 7, Area::metadata);
  start(Direction::read, 4, 1, 7, Area::metadata);
  start(Direction::write, 5, 1, 6);
  finish();
  EXPECT_EQ(order(), "wwRWrw");
}

}  // namespace
}  // namespace spillway::storage
