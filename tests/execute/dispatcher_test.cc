// Tasks on their lanes and back: work that the caller's waits let begin, transfers between processes, and errors.
#include "spillway/execute/dispatcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/arena_layout.h"
#include "tests/execute/lanes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using plan::Index;

/// Updates of chunks that stay in memory.
class DispatcherTest : public ::testing::Test {
 protected:
  DispatcherTest() {
    const auto description = plan::test::describe({.layers = 3, .tied = false});
    const auto layout = description.layout();
    schedule_ = plan::make_schedule(description, layout, plan::test::placement_of(layout), {});
    static_cast<void>(lay_out(schedule_));
    add_reuse_dependencies(schedule_);
  }

  plan::Schedule schedule_;
  test::Tiles work_;
  const Clock clock_;
};

TEST_F(DispatcherTest, UpdatesThatAPassNeedsRunBeforeIt) {
  Dispatcher dispatcher(schedule_, {}, work_, {.own = 2}, {}, clock_);
  auto lock = dispatcher.lock();
  auto& tasks = dispatcher.tasks();
  dispatcher.begin({.update = true, .updates = 1}, lock);
  while (tasks.find_pass() < schedule_.passes.size()) {
    const auto pass = tasks.pass();
    dispatcher.wait_until([&] { return tasks.is_ready(pass); }, lock);
    for (const auto& need : schedule_.tasks[schedule_.passes[pass].task].needs) {
      EXPECT_TRUE(need.previous || tasks.have_ended(std::vector{need.task}));
    }
    dispatcher.change([](auto& tracker, auto& released) { tracker.end_pass(released); }, lock);
  }
  dispatcher.wait_until([&] { return tasks.all_ended(); }, lock);
  EXPECT_GT(dispatcher.updates().updated().at(0).elements, 0U);
}

TEST_F(DispatcherTest, UpdatesOnSharedCoresBeginWhileTheCallerWaits) {
  Dispatcher dispatcher(schedule_, {}, work_, {.shared = 2}, {}, clock_);
  auto lock = dispatcher.lock();
  dispatcher.begin({.update = true, .updates = 1}, lock);
  dispatcher.run_while_waiting([&] { work_.wait_for_one(); }, lock);
  EXPECT_TRUE(lock) << "the caller has the lock again";
}

/// A pass, and two transfers between processes after it.
class NetworkDispatcherTest : public ::testing::Test, public NetworkWork {
 protected:
  NetworkDispatcherTest() {
    schedule_.tasks.resize(3);
    schedule_.passes.resize(1);
    schedule_.passes[0].task = 0;
    schedule_.tasks[0].what.index = 0;
    for (Index t = 1; t < 3; ++t) {
      schedule_.tasks[t].op = plan::Op::gather;
      schedule_.tasks[t].lane = plan::Lane::network;
      schedule_.tasks[t].what.index = t;
      schedule_.tasks[t].needs = {{0, false}};
      schedule_.network.push_back(t);
    }
    dispatcher_.emplace(schedule_, Transfers::Ends{}, work_, UpdateCores{.own = 1}, OtherProcesses{&port_, this},
                        clock_);
    auto lock = dispatcher_->lock();
    dispatcher_->begin({}, lock);
    EXPECT_EQ(dispatcher_->tasks().find_pass(), 0U);
  }
  std::vector<network::Message> messages(const plan::Task& task) override {
    if (fails_) throw Error(ErrorCode::internal, text("no room for task ", task.what.index));
    return {{.peer = 1, .sends = true, .bytes = byte_}};
  }
  void arrived(const plan::Task& /*task*/) override { ++arrived_; }
  [[nodiscard]] bool adds(const plan::Task& /*task*/) const override { return false; }
  void end_pass() {
    auto lock = dispatcher_->lock();
    dispatcher_->change([](auto& tracker, auto& released) { tracker.end_pass(released); }, lock);
  }

  plan::Schedule schedule_;
  test::OpenPort port_;
  test::Tiles work_;
  const Clock clock_;
  std::vector<std::byte> byte_{1};
  bool fails_ = false;
  std::atomic<int> arrived_ = 0;
  std::optional<Dispatcher> dispatcher_;
};

TEST_F(NetworkDispatcherTest, TheCallerWaitsForTransfersBetweenProcesses) {
  end_pass();
  ASSERT_EQ(port_.open.size(), 2U);
  std::thread network([&] {
    for (const auto& done : port_.open) done(nullptr);
  });
  auto lock = dispatcher_->lock();
  dispatcher_->end_network(lock);
  EXPECT_EQ(arrived_, 2);
  dispatcher_->wait_until([&] { return dispatcher_->tasks().all_ended(); }, lock);
  lock.unlock();
  network.join();
}

TEST_F(NetworkDispatcherTest, ProcessesWaitForThePassBeforeATransfer) {
  const auto late = dispatcher_->late();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->task, 1U);
  EXPECT_EQ(late->cause, 0U);
  end_pass();
  EXPECT_FALSE(dispatcher_->late()) << "the transfers are under way";
  for (const auto& done : port_.open) done(nullptr);
}

TEST_F(NetworkDispatcherTest, EveryWaitThrowsTheFirstError) {
  fails_ = true;
  end_pass();
  EXPECT_TRUE(port_.open.empty());
  auto lock = dispatcher_->lock();
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(dispatcher_->wait_until([] { return false; }, lock), ErrorCode::internal, "no room for task 1");
  }
  EXPECT_ERROR(dispatcher_->throw_failure(), ErrorCode::internal, "no room for task 1");
}

}  // namespace
}  // namespace spillway::execute
