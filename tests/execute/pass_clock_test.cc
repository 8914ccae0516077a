// PassClock: spans are in the device's time, and each pass counts once.
#include "spillway/execute/pass_clock.h"

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "spillway/device/simulated.h"

namespace spillway::execute {
namespace {

using plan::PassKind;

/// Blocks the stream until open().
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
    const auto before = clock_.now();
    pass_clock_.emplace(schedule_, *device_, stream_, clock_);
    late_ = clock_.now() - before;
  }

  /// The work of a pass notes its own seconds, and waits for the gate if there is one.
  void pass(plan::Index number, Gate* gate = nullptr) {
    pass_clock_->begin_pass(number);
    device_->call(stream_, [this, number, gate] {
      const auto start = clock_.now();
      if (gate != nullptr) gate->wait();
      worked_[number] += clock_.now() - start;
    });
    pass_clock_->end_pass(number);
  }

  void step(std::uint64_t instance, Gate* gate = nullptr) {
    pass_clock_->begin_instance(instance);
    for (plan::Index number = 0; number < 3; ++number) pass(number, number == 0 ? gate : nullptr);
    pass_clock_->end_instance();
  }

  static constexpr double kRounding = 1e-7;  // of seconds that are added

  plan::Schedule schedule_;
  std::unique_ptr<device::Simulated> device_;
  const device::Stream stream_;
  const Clock clock_;
  double late_ = 0;                 ///< seconds by which the clock may have read its anchor late
  std::array<double, 3> worked_{};  ///< by pass, over all steps
  std::optional<PassClock> pass_clock_;
};

TEST_F(PassClockTest, SpansAreInTheTimeOfTheDevice) {
  const auto given = clock_.now();
  Gate gate;
  step(0, &gate);
  const auto issued = clock_.now();
  gate.open();
  device_->synchronise();
  const auto ended = clock_.now();
  const auto spans = pass_clock_->read_spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_GE(spans[0].end, issued - kRounding);  // the host had issued all passes while the device ran the first
  double before = given;
  for (std::size_t number = 0; number < spans.size(); ++number) {
    const auto& span = spans[number];
    EXPECT_GE(span.start, before - kRounding);
    EXPECT_GE(span.end - span.start, worked_[number] - kRounding);
    before = span.end;
  }
  EXPECT_LE(spans.back().end, ended + late_ + kRounding);
  const auto totals = pass_clock_->read_totals();
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::forward)].passes, 2U);
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::backward)].passes, 1U);
  EXPECT_NEAR(totals[static_cast<std::size_t>(PassKind::forward)].seconds,
              spans[0].end - spans[0].start + spans[1].end - spans[1].start, 1e-9);
}

TEST_F(PassClockTest, EmbeddingPassesRunOnTheHost) {
  schedule_.passes[1].kind = PassKind::embedding;
  step(0);
  device_->synchronise();
  const auto spans = pass_clock_->read_spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].end, 0);
  EXPECT_EQ(pass_clock_->read_totals()[static_cast<std::size_t>(PassKind::embedding)].passes, 0U);
}

TEST_F(PassClockTest, AnInstanceIsReadAfterTheDeviceHasRunAllOfIt) {
  Gate gate;
  pass_clock_->begin_instance(0);
  pass_clock_->begin_pass(0);
  device_->call(stream_, [&] { gate.wait(); });
  pass_clock_->end_pass(0);
  EXPECT_TRUE(pass_clock_->read_spans(0).empty());
  pass_clock_->end_instance();
  EXPECT_TRUE(pass_clock_->read_spans(0).empty());
  EXPECT_EQ(pass_clock_->read_totals()[static_cast<std::size_t>(PassKind::forward)].passes, 0U);
  gate.open();
  device_->synchronise();
  const auto spans = pass_clock_->read_spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_GT(spans[0].end, spans[0].start);
  EXPECT_EQ(spans[1].end, 0);  // pass 1 did not run
}

TEST_F(PassClockTest, EveryPassCountsOnceAndTheNewestInstancesKeepTheirSpans) {
  constexpr std::uint64_t kSteps = 20;
  for (std::uint64_t instance = 0; instance < kSteps; ++instance) {
    step(2 * instance);  // odd instances have no passes
    if (instance % 3 == 0) static_cast<void>(pass_clock_->read_spans(2 * instance));
  }
  device_->synchronise();
  const auto totals = pass_clock_->read_totals();
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::forward)].passes, 2 * kSteps);
  EXPECT_EQ(totals[static_cast<std::size_t>(PassKind::backward)].passes, kSteps);
  EXPECT_GE(totals[static_cast<std::size_t>(PassKind::backward)].seconds, worked_[2] - kRounding);
  EXPECT_EQ(pass_clock_->read_spans(2 * kSteps - 2).size(), 3U);
  EXPECT_EQ(pass_clock_->read_spans(2 * kSteps - 4).size(), 3U);
  EXPECT_TRUE(pass_clock_->read_spans(0).empty());  // its events were recorded again
  EXPECT_LE(pass_clock_->read_spans(2 * kSteps - 4).back().end, pass_clock_->read_spans(2 * kSteps - 2).front().start);
}

}  // namespace
}  // namespace spillway::execute
