#include "spillway/sys/faulty_ring.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "spillway/sys/mapping.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

class FaultyRingTest : public ::testing::Test {
 protected:
  FaultyRingTest() { file_.reserve(64 * KiB); }

  void submit(std::uint64_t tag, Bytes offset = 0) {
    ring_->submit({Operation::read, memory_.span().data(), 4 * KiB, offset, tag});
  }
  /// The next completions, waiting through wake-ups.
  std::vector<Completion> next(std::size_t count) {
    std::vector<Completion> all;
    std::vector<Completion> batch(4);
    while (all.size() < count) {
      const std::size_t got = ring_->wait(batch);
      all.insert(all.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(got));
    }
    return all;
  }

  testing::TemporaryDirectory directory_;
  File file_{directory_.path() / "file", {.write = true, .create = true}};
  Mapping memory_{4 * KiB};
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::unique_ptr<Ring> ring_ = faulty(make_thread_ring, faults_)(file_, 4);
};

TEST_F(FaultyRingTest, FailsWhatItWasToldAndNoMore) {
  faults_->fail(Operation::read, 4 * KiB, EIO);
  submit(1, 0);
  EXPECT_EQ(next(1)[0].result, static_cast<int>(4 * KiB));
  submit(2, 4 * KiB);
  EXPECT_EQ(next(1)[0].result, -EIO);
  submit(3, 4 * KiB);
  EXPECT_EQ(next(1)[0].result, static_cast<int>(4 * KiB));
  EXPECT_EQ(faults_->submitted().size(), 3U);
}

TEST_F(FaultyRingTest, FailsASyncAndShowsIt) {
  faults_->fail(Operation::sync, 0, EIO);
  for (const std::uint64_t tag : {1, 2}) ring_->submit({Operation::sync, nullptr, 0, 0, tag});
  std::map<std::uint64_t, std::int32_t> results;
  for (const Completion& completion : next(2)) results[completion.tag] = completion.result;
  EXPECT_EQ(results, (std::map<std::uint64_t, std::int32_t>{{1, -EIO}, {2, 0}}));
  EXPECT_EQ(faults_->submitted().at(1).operation, Operation::sync);
}

TEST_F(FaultyRingTest, ShortensTransfers) {
  faults_->shorten(Operation::read, 0, 512);
  faults_->shorten(Operation::read, 0, 0);
  submit(1);
  EXPECT_EQ(next(1)[0].result, 512);
  submit(2);
  EXPECT_EQ(next(1)[0].result, 0);
}

TEST_F(FaultyRingTest, TheGateHoldsAndReverses) {
  faults_->hold();
  faults_->fail(Operation::read, 0, EIO, 3);
  for (std::uint64_t tag = 1; tag <= 3; ++tag) submit(tag);
  ring_->wake();
  std::vector<Completion> batch(4);
  EXPECT_EQ(ring_->wait(batch), 0U);
  faults_->release(Faults::Order::reversed);
  const auto late = next(3);
  EXPECT_EQ(late[0].tag, 3U);
  EXPECT_EQ(late[2].tag, 1U);
}

TEST_F(FaultyRingTest, TheGateLetsSomeThrough) {
  faults_->fail(Operation::read, 0, EIO, 3);
  faults_->hold();
  for (std::uint64_t tag = 1; tag <= 3; ++tag) submit(tag);
  faults_->pass(2);
  const auto passed = next(2);
  EXPECT_EQ(passed[0].tag, 1U);
  EXPECT_EQ(passed[1].tag, 2U);
  ring_->wake();
  std::vector<Completion> batch(4);
  EXPECT_EQ(ring_->wait(batch), 0U);
  faults_->release();
  EXPECT_EQ(next(1)[0].tag, 3U);
}

TEST_F(FaultyRingTest, Breaks) {
  faults_->break_ring();
  std::vector<Completion> batch(4);
  EXPECT_ERROR(ring_->wait(batch), ErrorCode::io, "broken");
}

TEST_F(FaultyRingTest, RefusesRegistration) {
  faults_->refuse_registration("no");
  EXPECT_EQ(ring_->register_memory(memory_.span()), "no");
}

}  // namespace
}  // namespace spillway::sys
