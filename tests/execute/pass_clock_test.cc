// Passes on a device by the device's own time: what the host gave it, when it ran, and when that is told.
#include "spillway/execute/pass_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "spillway/device/simulated.h"

namespace spillway::execute {
namespace {

using plan::PassKind;

/// Work of the stream that runs until it is let go.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class PassClockTest : public ::testing::Test {
 protected:
  PassClockTest() : device_(device::make_simulated({.memory = MiB})), stream_(device_->make_stream()) {
    for (const auto kind : {PassKind::forward, PassKind::forward, PassKind::backward}) {
      schedule_.passes.push_back({.kind = kind});
    }
    clock_of_passes_.emplace(schedule_, *device_, stream_, clock_);
  }

  void pass(plan::Index number, double seconds) {
    clock_of_passes_->opened(number);
    device_->call(stream_, [=] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
    clock_of_passes_->issued(number);
  }

  void step(std::uint64_t instance, double seconds) {
    clock_of_passes_->begin(instance);
    for (plan::Index number = 0; number < 3; ++number) pass(number, seconds);
    clock_of_passes_->end();
  }

  plan::Schedule schedule_;
  std::unique_ptr<device::Simulated> device_;
  const device::Stream stream_;
  const Clock clock_;
  std::optional<PassClock> clock_of_passes_;
};

TEST_F(PassClockTest, TellsWhenTheDeviceRanThem) {
  const auto given = clock_.now();
  step(0, 0.02);
  device_->synchronise();
  const auto ended = clock_.now();
  const auto spans = clock_of_passes_->spans(0);
  ASSERT_EQ(spans.size(), 3U);
  double before = given - 1e-3;  // the clock and the device's events are compared within a millisecond
  for (const auto& span : spans) {
    EXPECT_GE(span.start, before);
    EXPECT_GE(span.end - span.start, 0.02 - 1e-4);
    before = span.end - 1e-4;
  }
  EXPECT_LE(spans.back().end, ended + 1);  // the first event was looked at late, where the machine is busy
  const auto totals = clock_of_passes_->totals();
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::forward)].passes, 2U);
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::backward)].passes, 1U);
  EXPECT_NEAR(totals[static_cast<std::size_t>(PassKind::forward)].seconds,
              spans[0].end - spans[0].start + spans[1].end - spans[1].start, 1e-9);
}

TEST_F(PassClockTest, PassesOverRowsOfATableAreTheHosts) {
  schedule_.passes[1].kind = PassKind::embedding;
  step(0, 1e-4);
  device_->synchronise();
  const auto spans = clock_of_passes_->spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].end, 0);
  EXPECT_EQ(clock_of_passes_->totals()[static_cast<std::size_t>(PassKind::embedding)].passes, 0U);
}

TEST_F(PassClockTest, SaysNothingOfAnInstanceThatTheDeviceHasNotEnded) {
  Gate gate;
  clock_of_passes_->begin(0);
  clock_of_passes_->opened(0);
  device_->call(stream_, [&] { gate.wait(); });
  clock_of_passes_->issued(0);
  EXPECT_TRUE(clock_of_passes_->spans(0).empty());
  clock_of_passes_->end();
  EXPECT_TRUE(clock_of_passes_->spans(0).empty());
  EXPECT_EQ(clock_of_passes_->totals()[static_cast<std::size_t>(PassKind::forward)].passes, 0U);
  gate.open();
  device_->synchronise();
  const auto spans = clock_of_passes_->spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_GT(spans[0].end, spans[0].start);
  EXPECT_EQ(spans[1].end, 0);  // did not run
}

TEST_F(PassClockTest, CountsEveryPassOnceAndKeepsTheTimesOfTheNewestInstances) {
  constexpr std::uint64_t kSteps = 20;
  for (std::uint64_t instance = 0; instance < kSteps; ++instance) {
    step(2 * instance, instance % 5 == 0 ? 2e-3 : 0);  // numbers between are those of instances without passes
    if (instance % 3 == 0) static_cast<void>(clock_of_passes_->spans(2 * instance));
  }
  device_->synchronise();
  const auto totals = clock_of_passes_->totals();
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::forward)].passes, 2 * kSteps);
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::backward)].passes, kSteps);
  EXPECT_GE(totals[static_cast<std::size_t>(PassKind::backward)].seconds, 4 * 2e-3);
  EXPECT_EQ(clock_of_passes_->spans(2 * kSteps - 2).size(), 3U);
  EXPECT_EQ(clock_of_passes_->spans(2 * kSteps - 4).size(), 3U);
  EXPECT_TRUE(clock_of_passes_->spans(0).empty());  // too long ago
  EXPECT_LE(clock_of_passes_->spans(2 * kSteps - 4).back().end, clock_of_passes_->spans(2 * kSteps - 2).front().start);
}

}  // namespace
}  // namespace spillway::execute
