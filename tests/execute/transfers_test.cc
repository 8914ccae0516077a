// Transfers of ready tasks, with a path and with a device: their bytes, their ends and their errors.
#include "spillway/execute/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "spillway/device/simulated.h"
#include "spillway/execute/reductions.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_storage.h"
#include "spillway/plan/arena_layout.h"
#include "tests/execute/lanes.h"
#include "tests/execute/planned.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using plan::Index;

/// A client that keeps what it is told, and the tasks that an instance begins with.
class Listening : public ::testing::Test, protected Transfers::Client {
 protected:
  /// An end, or `issued`.
  struct Event {
    Index task = plan::kNone;
    bool issued = false;
    std::exception_ptr error;
    std::thread::id thread;
  };

  void open(const plan::Schedule& schedule, const Transfers::Ends& ends) {
    tracker_.emplace(schedule, work_);
    tracker_->begin({}, released_);
    transfers_.emplace(schedule, ends, *tracker_, mutex_, static_cast<Transfers::Client&>(*this));
  }
  void start(Index task) { transfers_->start(std::vector<Start>{{0, task}}); }
  [[nodiscard]] std::vector<Event> stop() {
    transfers_->stop();
    const std::lock_guard lock(mutex_);
    return events_;
  }

  std::mutex mutex_;
  test::Tiles work_;
  Released released_;
  std::optional<DependencyTracker> tracker_;
  std::optional<Transfers> transfers_;
  std::size_t fed_ = 0;  ///< calls of issued_ended()

 private:
  void transfer_issued(const Start& start) override {
    EXPECT_TRUE(transfers_->is_feeding());
    Released passes;
    tracker_->issue(start, passes);
    events_.push_back({.task = start.task, .issued = true});
  }
  void issued_ended() override {
    EXPECT_FALSE(transfers_->is_feeding());
    ++fed_;
  }
  void transfer_ended(const Start& start, const std::exception_ptr& error, Transfers::Lock& lock) noexcept override {
    EXPECT_TRUE(lock);
    events_.push_back({.task = start.task, .error = error, .thread = std::this_thread::get_id()});
  }

  std::vector<Event> events_;
};

class PathTransfersTest : public Listening {
 protected:
  PathTransfersTest() : storage_(planned_.run_plan(), planned_.volumes(false)) {
    Recovery recovery;
    EXPECT_TRUE(storage_.open({}, recovery));
    resources_.emplace(planned_.run_plan(), 1, storage_.paths());
    storage_.start(recovery);
    open(planned_.plan.schedule, {.arena = resources_->host().data(), .store = storage_.store()});
  }
  ~PathTransfersTest() override {
    transfers_.reset();
    storage_.stop();
  }

  /// The first read of an object of this kind.
  [[nodiscard]] Index find_read(plan::ObjectKind kind) const {
    const auto& tasks = planned_.plan.schedule.tasks;
    const auto it = std::ranges::find_if(tasks, [&](const auto& task) { return task.moves(plan::Lane::read, kind); });
    return static_cast<Index>(it - tasks.begin());
  }
  [[nodiscard]] std::span<std::byte> memory_of(const plan::Task& task) {
    const auto& place = task.memory();
    return resources_->host().subspan(planned_.plan.schedule.buffers[place.buffer].offset + place.offset, task.bytes);
  }

  const test::Planned planned_;
  std::optional<Resources> resources_;
  RunStorage storage_;
};

TEST_F(PathTransfersTest, AReadBringsTheBytesThatWereWritten) {
  const auto read = find_read(plan::ObjectKind::weight);
  const auto& task = planned_.plan.schedule.tasks.at(read);
  const auto memory = memory_of(task);
  std::ranges::fill(memory, std::byte{5});
  storage_.store()->write(plan::ObjectKind::weight, task.what.index, memory, 1);
  std::ranges::fill(memory, std::byte{});
  start(read);
  const auto events = stop();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].task, read);
  EXPECT_FALSE(events[0].error);
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte it) { return it == std::byte{5}; }));
}

TEST_F(PathTransfersTest, ATransferThatCannotStartEndsWithItsErrorOnTheSameThread) {
  const auto read = find_read(plan::ObjectKind::state);
  start(read);
  const auto events = stop();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].task, read);
  EXPECT_EQ(events[0].thread, std::this_thread::get_id());
  ASSERT_TRUE(events[0].error);
  EXPECT_ERROR(std::rethrow_exception(events[0].error), ErrorCode::internal, "before it was written");
}

TEST_F(PathTransfersTest, NothingIsStalledWhileNothingIsInFlight) {
  const std::lock_guard lock(mutex_);
  EXPECT_FALSE(transfers_->are_stalled());
}

/// Weights of layers cross the link of a simulated device.
class DeviceTransfersTest : public Listening {
 protected:
  DeviceTransfersTest() : layout_(description_.layout()) {
    auto placement = plan::test::placement_of(layout_);
    placement.device = true;
    schedule_ = plan::make_schedule(description_, layout_, placement, {});
    host_.assign(lay_out(schedule_), std::byte{7});
    device_->allocate(lay_out(schedule_, plan::TierKind::device));
    add_reuse_dependencies(schedule_);
    updates_.emplace(schedule_, layout_, description_.rule(), Arenas(host_.data(), nullptr), *sink_);
    open(schedule_, {.arena = host_.data(), .device = {device_.get(), device_->make_stream(), &*updates_}});
  }
  ~DeviceTransfersTest() override { transfers_.reset(); }  // before the device

  const plan::Description description_ =
      plan::test::describe({.layers = 3, .embedding = false, .head = false, .tied = false});
  const state::Layout layout_;
  plan::Schedule schedule_;
  std::vector<std::byte> host_;
  const std::unique_ptr<device::Simulated> device_ = device::make_simulated({});
  const std::unique_ptr<sink::GradientSink> sink_ = make_sink(description_, layout_);
  std::optional<DeviceUpdates> updates_;
};

TEST_F(DeviceTransfersTest, ACopyThatAPassNeedsIsIssuedAndEnds) {
  const auto first = schedule_.passes[0].task;
  std::vector<Index> copies;
  for (const auto& it : released_.ready) {
    if (feeds_pass(schedule_, it.task, first) && schedule_.tasks[it.task].bytes > 0) copies.push_back(it.task);
  }
  ASSERT_FALSE(copies.empty());
  start(copies[0]);
  const auto events = stop();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_TRUE(events[0].issued);
  EXPECT_FALSE(events[1].issued);
  EXPECT_FALSE(events[1].error);
  EXPECT_EQ(events[1].task, copies[0]);
  EXPECT_EQ(fed_, 1U);
  const auto& task = schedule_.tasks[copies[0]];
  EXPECT_EQ(tracker_->times({0, copies[0]}).copied, task.bytes);
  const auto& place = task.on_device();
  const auto there = device_->memory().subspan(schedule_.buffers[place.buffer].offset + place.offset, task.bytes);
  EXPECT_TRUE(std::ranges::all_of(there, [](std::byte it) { return it == std::byte{7}; }));
}

}  // namespace
}  // namespace spillway::execute
