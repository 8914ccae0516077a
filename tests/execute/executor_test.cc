// Instances of a schedule that lies in memory: which passes they have, and what is updated before these.
#include "spillway/execute/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "spillway/device/simulated.h"
#include "spillway/execute/reductions.h"
#include "spillway/plan/arena_layout.h"
#include "tests/execute/lanes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

using test::Tiles;

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() : description_(plan::test::describe({.layers = 3, .tied = false})), layout_(description_.layout()) {
    schedule_ = plan::make_schedule(description_, layout_, plan::test::placement_of(layout_), {});
    static_cast<void>(lay_out(schedule_));
    add_reuse_dependencies(schedule_);
  }
  [[nodiscard]] bool is_updated(plan::Index chunk) const { return schedule_.update_task[chunk] != plan::kNone; }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  Tiles work_;
};

TEST_F(ExecutorTest, PassesComeInTheOrderOfTheSchedule) {
  Executor executor(schedule_, nullptr, nullptr, work_);
  for (int instance = 0; instance < 3; ++instance) {
    executor.begin({});
    for (const auto& pass : schedule_.passes) {
      ASSERT_EQ(executor.next(), &pass);
      executor.done();
    }
    EXPECT_EQ(executor.next(), nullptr);
  }
  executor.drain();
  const auto times = executor.last_times();
  for (std::size_t p = 1; p < schedule_.passes.size(); ++p) {
    EXPECT_LE(times[schedule_.passes[p - 1].task].end, times[schedule_.passes[p].task].start);
  }
  for (plan::Index c = 0; c < layout_.chunks().size(); ++c) EXPECT_EQ(work_.of(c), 0) << "no update was pending";
}

TEST_F(ExecutorTest, AnEvaluationEndsWithTheLoss) {
  Executor executor(schedule_, nullptr, nullptr, work_);
  executor.begin({.backward = false});
  std::size_t passes = 0;
  while (const auto* pass = executor.next()) {
    EXPECT_NE(traits(pass->kind).phase, plan::Phase::backward);
    executor.done();
    ++passes;
  }
  executor.drain();
  EXPECT_GT(passes, 0U);
  EXPECT_LT(passes, schedule_.passes.size());
}

TEST_F(ExecutorTest, AChunkIsUpdatedBeforeAPassReadsIt) {
  for (const unsigned own : {0U, 2U}) {
    Tiles work;
    Executor executor(schedule_, nullptr, nullptr, work, {.own = own, .shared = 2});
    executor.begin({.update = true, .updates = 1, .step = 1});
    while (const auto* pass = executor.next()) {
      const auto chunks = chunks_of(layout_, *pass);
      for (auto c = chunks.first; c < chunks.end(); ++c) {
        EXPECT_EQ(work.of(c), is_updated(c) ? Tiles::kCount : 0) << "chunk " << c;
      }
      executor.done();
    }
    executor.drain();
    std::uint64_t elements = 0;
    for (const auto& it : executor.updated()) elements += it.elements;
    EXPECT_GT(elements, 0U);
  }
}

/// Weights of layers cross a slow link for each pass, and passes run in a stream of the device.
class DeviceExecutorTest : public ::testing::Test {
 protected:
  DeviceExecutorTest()
      : description_(plan::test::describe({.layers = 3, .embedding = false, .head = false, .tied = false})),
        layout_(description_.layout()),
        schedule_(make_schedule()),
        host_(lay_out(schedule_), std::byte{7}) {
    device_->allocate(lay_out(schedule_, plan::TierKind::device));
    add_reuse_dependencies(schedule_);
    executor_.emplace(schedule_, host_.data(), nullptr, work_, UpdateCores{},
                      ComputeDevice{device_.get(), stream_, &updates_});
  }

  [[nodiscard]] Bytes weight_bytes_of(const plan::Pass& pass) const {
    Bytes out = 0;
    const auto chunks = chunks_of(layout_, pass);
    for (auto c = chunks.first; c < chunks.end(); ++c) out += weight_bytes(description_.rule(), layout_.chunks()[c]);
    return out;
  }
  plan::Schedule make_schedule() {
    auto placement = plan::test::placement_of(layout_);
    placement.device = true;
    return plan::make_schedule(description_, layout_, placement, {});
  }
  [[nodiscard]] bool copies_run() const { return executor_->device_fronts().at(plan::Lane::to_device).under_way > 0; }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  std::vector<std::byte> host_;
  const std::unique_ptr<device::Simulated> device_ = device::make_simulated({.latency = 0.02});
  const device::Stream stream_ = device_->make_stream();
  const std::unique_ptr<sink::GradientSink> sink_ = make_sink(description_, layout_);
  DeviceUpdates updates_{schedule_, layout_, description_.rule(), {host_.data(), nullptr}, *sink_};
  Tiles work_;
  std::optional<Executor> executor_;
};

TEST_F(DeviceExecutorTest, APassIsIssuedBeforeItsCopiesEndAndRunsAfterThem) {
  std::atomic<std::size_t> complete = 0;
  std::size_t passes = 0, before_copies = 0;
  for (int instance = 0; instance < 3; ++instance) {
    executor_->begin({});
    while (const auto* pass = executor_->next()) {
      before_copies += copies_run();
      const auto& weights = schedule_.buffers[pass->weights.front().here];
      const std::span found(device_->memory().subspan(weights.offset, weight_bytes_of(*pass)));
      device_->call(stream_, [found, &complete] {
        complete += std::ranges::all_of(found, [](std::byte it) { return it == std::byte{7}; });
      });
      executor_->done();
      ++passes;
    }
    EXPECT_FALSE(copies_run()) << "of what passes need all has ended after the last one";
  }
  executor_->drain();
  device_->synchronise();
  EXPECT_EQ(complete, passes);
  EXPECT_GE(before_copies, passes / 2);
}

TEST_F(DeviceExecutorTest, TimeInWhichTheDeviceWaitsForCopiesIsTheirs) {
  executor_->begin({});
  while (executor_->next() != nullptr) executor_->done();
  device_->synchronise();
  executor_->settle_waits();
  const auto seconds = executor_->waits().list_by_lane();
  EXPECT_GE(seconds.at(plan::name_of(plan::Lane::to_device)), 0.02) << "the first pass follows a copy at least";
  executor_->drain();
}

}  // namespace
}  // namespace spillway::execute
