// The threads of updates: what begins when, in which order, and who shares its tiles.
#include "spillway/execute/update_lanes.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "spillway/memory/near.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

/// Counts tiles. What is prepared waits while the gate is closed.
class Gate : public UpdateWork {
 public:
  [[nodiscard]] std::size_t slices(plan::Index) const override { return 2; }
  void save(plan::Index chunk, std::size_t) override { count(chunk); }
  [[nodiscard]] std::size_t tiles(plan::Index, std::size_t) const override { return 5; }
  void prepare(plan::Index, bool) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  void run(plan::Index chunk, std::size_t, std::size_t, bool) override {
    count(chunk);
    const std::lock_guard lock(mutex_);
    nice_.insert(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())));
    cpus_.insert(sys::thread_affinity());
  }

  void open(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  [[nodiscard]] std::map<plan::Index, int> counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  /// Of the threads that ran tiles: their nice values, and the CPUs that they may run on.
  [[nodiscard]] std::set<int> nice() {
    const std::lock_guard lock(mutex_);
    return nice_;
  }
  [[nodiscard]] std::set<std::vector<unsigned>> cpus() {
    const std::lock_guard lock(mutex_);
    return cpus_;
  }

 private:
  void count(plan::Index chunk) {
    const std::lock_guard lock(mutex_);
    ++counts_[chunk];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  std::map<plan::Index, int> counts_;
  std::set<int> nice_;
  std::set<std::vector<unsigned>> cpus_;
};

class UpdateLanesTest : public ::testing::Test, private UpdateLanes::Client {
 protected:
  UpdateLanesTest()
      : description_(plan::test::describe({.layers = 3, .tied = false})),
        layout_(description_.blocks, description_.chunk_elements) {
    schedule_ =
        plan::make_schedule(description_, layout_, plan::test::placement_of(layout_, {.when = plan::When::early}), {});
    static_cast<void>(lay_out(schedule_));
  }

  [[nodiscard]] std::unique_ptr<UpdateLanes> lanes(UpdateCores cores) {
    return std::make_unique<UpdateLanes>(schedule_, gate_, std::move(cores), clock_, mutex_,
                                         static_cast<UpdateLanes::Client&>(*this));
  }
  void push(UpdateLanes& lanes, plan::Index task, std::uint64_t instance = 0) {
    const std::lock_guard lock(mutex_);
    lanes.push({instance, task});
  }
  /// The deferred updates of all chunks, the latest deadline first.
  [[nodiscard]] std::vector<plan::Index> latest_first() const {
    std::vector<plan::Index> out;
    for (const auto task : schedule_.update_task) {
      if (task != plan::kNone) out.push_back(task);
    }
    std::ranges::stable_sort(out,
                             [&](auto a, auto b) { return schedule_.tasks[a].deadline > schedule_.tasks[b].deadline; });
    return out;
  }
  void wait_for_begun(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_.size() >= count; });
  }
  [[nodiscard]] std::vector<plan::Index> wait_for_ended(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.size() >= count; });
    return ended_;
  }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  Gate gate_;
  const Clock clock_;
  std::mutex mutex_;

 private:
  void update_begins(const Start& start, double) override {
    begun_.push_back(start.task);
    changed_.notify_all();
  }
  void update_ended(const Start& start, double, std::size_t, std::unique_lock<std::mutex>&) override {
    ended_.push_back(start.task);
    changed_.notify_all();
  }
  void tiles_begin() override { changed_.notify_all(); }

  std::condition_variable changed_;
  std::vector<plan::Index> begun_, ended_;
};

TEST_F(UpdateLanesTest, TheEarliestDeadlineGoesFirst) {
  gate_.open(false);
  const auto under_test = lanes({.own = 1});
  const auto tasks = latest_first();
  ASSERT_GT(tasks.size(), 3U);
  push(*under_test, tasks.front());
  wait_for_begun(1);  // and waits at the gate, while the others come
  for (const auto task : tasks) {
    if (task != tasks.front()) push(*under_test, task);
  }
  gate_.open(true);
  const auto ended = wait_for_ended(tasks.size());
  EXPECT_EQ(ended.front(), tasks.front());
  EXPECT_TRUE(std::ranges::is_sorted(ended.begin() + 1, ended.end(), [&](auto a, auto b) {
    return schedule_.tasks[a].deadline < schedule_.tasks[b].deadline;
  }));
}

TEST_F(UpdateLanesTest, AnEarlierInstanceGoesFirst) {
  gate_.open(false);
  const auto under_test = lanes({.own = 1});
  const auto tasks = latest_first();
  push(*under_test, tasks[1]);
  wait_for_begun(1);
  push(*under_test, tasks.back(), 1);   // the first of the next instance
  push(*under_test, tasks.front(), 0);  // the last of this one
  gate_.open(true);
  EXPECT_EQ(wait_for_ended(3), (std::vector{tasks[1], tasks.front(), tasks.back()}));
}

TEST_F(UpdateLanesTest, EveryTileRunsOnceWhoeverTakesIt) {
  const auto under_test = lanes({.own = 3});
  const auto tasks = latest_first();
  std::map<plan::Index, int> expected;
  for (const auto task : tasks) {
    expected[schedule_.tasks[task].what.index] += 5;
    push(*under_test, task);
  }
  {
    std::unique_lock lock(mutex_);
    under_test->caller_waits(true);
    for (int i = 0; i < 100; ++i) static_cast<void>(under_test->help(lock));
  }
  static_cast<void>(wait_for_ended(tasks.size()));
  EXPECT_EQ(gate_.counts(), expected);
  const std::lock_guard lock(mutex_);
  std::uint64_t elements = 0;
  for (const auto task : tasks) elements += schedule_.tasks[task].bytes;
  ASSERT_EQ(under_test->updated().size(), 1U);
  EXPECT_EQ(under_test->updated()[0].elements, elements);
}

TEST_F(UpdateLanesTest, WhatIsOfIdlePriorityBeginsWhenTheCallerWaits) {
  const auto idle = plan::idle_priority(schedule_);
  const auto tasks = latest_first();
  const auto task = tasks.back();  // of the earliest deadline: a wrong lane would begin with it
  ASSERT_TRUE(idle[task]);
  const auto other = std::ranges::find_if(schedule_.early, [&](const auto& it) {
    return it.task != plan::kNone && !idle[it.task] &&
           schedule_.tasks[it.task].what.index != schedule_.tasks[task].what.index;
  });
  ASSERT_NE(other, schedule_.early.end());
  const auto under_test = lanes({.shared = 1});
  push(*under_test, task);
  push(*under_test, other->task);
  EXPECT_EQ(wait_for_ended(1), std::vector{other->task});
  EXPECT_EQ(gate_.counts().count(schedule_.tasks[task].what.index), 0U);
  {
    const std::lock_guard lock(mutex_);
    under_test->caller_waits(true);
  }
  EXPECT_EQ(wait_for_ended(2), (std::vector{other->task, task}));
}

TEST_F(UpdateLanesTest, EarlyUpdatesThatHaveNotBegunAreTakenBack) {
  gate_.open(false);
  const auto under_test = lanes({.own = 1});
  std::vector<plan::Index> early;
  for (const auto& it : schedule_.early) {
    if (it.task != plan::kNone) early.push_back(it.task);
  }
  ASSERT_GT(early.size(), 2U);
  push(*under_test, early[0]);
  wait_for_begun(1);
  for (std::size_t i = 1; i < early.size(); ++i) push(*under_test, early[i]);
  std::vector<plan::Index> taken;
  {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(under_test->early_active());
    while (const auto start = under_test->take_early()) taken.push_back(start->task);
  }
  std::ranges::sort(taken);
  auto rest = std::vector(early.begin() + 1, early.end());
  std::ranges::sort(rest);
  EXPECT_EQ(taken, rest);
  gate_.open(true);
  EXPECT_EQ(wait_for_ended(1), std::vector{early[0]});
  EXPECT_EQ(gate_.counts()[schedule_.tasks[early[0]].what.index], 2 + 5) << "its old version is saved first";
}

TEST_F(UpdateLanesTest, ThreadsBesideAGpuSpareTheCaller) {
  const auto under_test = lanes({.own = 2, .spare_caller = true});
  const auto tasks = latest_first();
  for (const auto task : tasks) push(*under_test, task);
  {
    std::unique_lock lock(mutex_);
    under_test->caller_waits(true);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(under_test->help(lock));
  }
  static_cast<void>(wait_for_ended(tasks.size()));
  const auto own = ::getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(gate_.nice(), std::set<int>{std::min(19, own + memory::kUpdateNice)});

  const auto all = sys::thread_affinity();
  ASSERT_EQ(gate_.cpus().size(), 1U);
  const auto theirs = *gate_.cpus().begin();
  std::vector<unsigned> spared, core;
  std::ranges::set_difference(all, theirs, std::back_inserter(spared));
  if (sys::core_cpus(all.front()).size() >= all.size()) {
    EXPECT_TRUE(spared.empty()) << "there is one core";
    return;
  }
  ASSERT_FALSE(spared.empty());
  std::ranges::set_intersection(sys::core_cpus(spared.front()), all, std::back_inserter(core));
  EXPECT_EQ(spared, core);
}

TEST_F(UpdateLanesTest, ThreadsHaveTheCallersPriorityOtherwise) {
  const auto under_test = lanes({.own = 2});
  push(*under_test, latest_first().front());
  static_cast<void>(wait_for_ended(1));
  EXPECT_EQ(gate_.nice(), std::set<int>{::getpriority(PRIO_PROCESS, 0)});
  EXPECT_EQ(gate_.cpus(), std::set<std::vector<unsigned>>{sys::thread_affinity()});
}

TEST_F(UpdateLanesTest, NothingBeginsAfterAHalt) {
  const auto under_test = lanes({.own = 2});
  {
    const std::lock_guard lock(mutex_);
    under_test->halt();
  }
  push(*under_test, latest_first().front());
  under_test->stop();
  EXPECT_TRUE(gate_.counts().empty());
}

}  // namespace
}  // namespace spillway::execute
