// Tasks that a change releases and tasks that it skips, without lanes.
#include "spillway/execute/dependency_tracker.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "tests/execute/lanes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using plan::Index;
using plan::Lane;
using plan::OnlyIf;
using plan::Op;
using plan::Phase;
using Tasks = std::vector<Index>;

Tasks tasks_of(const std::vector<Start>& starts) {
  Tasks out;
  for (const auto& it : starts) out.push_back(it.task);
  return out;
}

/// A schedule of two chunks, made by hand.
class DependencyTrackerTest : public ::testing::Test {
 protected:
  DependencyTrackerTest() { schedule_.update_task.assign(2, plan::kNone); }

  Index add(Op op, Lane lane, Phase phase, std::vector<plan::Dependency> needs = {}, Index chunk = 0) {
    schedule_.tasks.push_back({.op = op,
                               .lane = lane,
                               .what = {plan::ObjectKind::chunk, chunk},
                               .when = {.phase = phase},
                               .needs = std::move(needs)});
    return static_cast<Index>(schedule_.tasks.size() - 1);
  }
  Index add_pass(plan::PassKind kind, Phase phase, std::vector<plan::Dependency> needs) {
    const auto task = add(Op::compute, Lane::compute, phase, std::move(needs), pass_count());
    schedule_.passes.push_back({.kind = kind, .task = task});
    return task;
  }
  [[nodiscard]] Index pass_count() const { return static_cast<Index>(schedule_.passes.size()); }
  [[nodiscard]] DependencyTracker make() { return {schedule_, work_}; }
  template <class Change>
  [[nodiscard]] static Released after(const Change& change) {
    Released out;
    change(out);
    return out;
  }
  [[nodiscard]] static Released begin(DependencyTracker& tracker, const Mode& mode = {}) {
    return after([&](auto& released) { tracker.begin(mode, released); });
  }
  [[nodiscard]] static Released end(DependencyTracker& tracker, const Start& start) {
    return after([&](auto& released) { tracker.end(start, released); });
  }
  [[nodiscard]] static Released end_pass(DependencyTracker& tracker) {
    return after([&](auto& released) { tracker.end_pass(released); });
  }

  plan::Schedule schedule_;
  test::Tiles work_;
};

TEST_F(DependencyTrackerTest, TasksAreReadyWhenAllThatTheyNeedHasEnded) {
  const auto one = add(Op::transfer, Lane::read, Phase::forward), two = add(Op::transfer, Lane::read, Phase::forward);
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {{one}, {two}});
  auto tracker = make();
  EXPECT_EQ(tasks_of(begin(tracker).ready), (Tasks{one, two}));
  EXPECT_EQ(tracker.find_pass(), 0U);
  EXPECT_TRUE(end(tracker, {0, two}).ready.empty());
  EXPECT_FALSE(tracker.is_ready(0));
  EXPECT_FALSE(tracker.have_ended(Tasks{one, two}));
  EXPECT_EQ(tasks_of(end(tracker, {0, one}).ready), Tasks{pass});
  EXPECT_TRUE(tracker.is_ready(0));
  EXPECT_TRUE(tracker.have_ended(Tasks{one, two}));
  EXPECT_FALSE(tracker.all_ended());
  EXPECT_TRUE(end_pass(tracker).awaited) << "the instance has ended";
  EXPECT_TRUE(tracker.all_ended());
  EXPECT_EQ(tracker.find_pass(), 1U);
}

TEST_F(DependencyTrackerTest, SkippedTasksEndAtOnceAndReleaseOthers) {
  const auto read = add(Op::transfer, Lane::read, Phase::update);
  const auto update = add(Op::update, Lane::update, Phase::update, {{read}});
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {{update}});
  const auto backward = add_pass(plan::PassKind::backward, Phase::backward, {{pass}});
  auto tracker = make();
  const auto released = begin(tracker, {.backward = false});
  EXPECT_EQ(tasks_of(released.skipped), (Tasks{read, update}));
  EXPECT_EQ(tasks_of(released.ready), Tasks{pass});
  EXPECT_EQ(tracker.find_pass(), 0U);
  EXPECT_EQ(tasks_of(end_pass(tracker).skipped), Tasks{backward});
  EXPECT_EQ(tracker.find_pass(), 2U) << "an evaluation has no backward pass";
  EXPECT_TRUE(tracker.all_ended());
}

TEST_F(DependencyTrackerTest, TheNextInstanceWaitsForTasksOfTheOneBefore) {
  const auto write = add(Op::transfer, Lane::write, Phase::forward);
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {{write, true}});
  auto tracker = make();
  EXPECT_EQ(tasks_of(begin(tracker).ready), (Tasks{write, pass})) << "the first instance has none before it";
  static_cast<void>(end_pass(tracker));
  EXPECT_EQ(tasks_of(begin(tracker).ready), Tasks{write});
  EXPECT_FALSE(tracker.has_room()) << "the first instance has not ended";
  const auto released = end(tracker, {0, write});
  ASSERT_EQ(tasks_of(released.ready), Tasks{pass});
  EXPECT_EQ(released.ready[0].instance, 1U);
  EXPECT_TRUE(tracker.has_room());
  static_cast<void>(end(tracker, {1, write}));
  static_cast<void>(end_pass(tracker));
  EXPECT_EQ(tasks_of(begin(tracker).ready), (Tasks{write, pass})) << "what has ended is not waited for";
}

TEST_F(DependencyTrackerTest, APassOfTheDeviceFollowsCopiesThatAreIssued) {
  const auto copy = add(Op::transfer, Lane::to_device, Phase::forward);
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {{copy}});
  const auto host_pass = add_pass(plan::PassKind::forward, Phase::forward, {{copy}});
  schedule_.passes[1].on_host = true;
  auto tracker = make();
  EXPECT_EQ(tasks_of(begin(tracker).ready), Tasks{copy});
  EXPECT_FALSE(tracker.is_issued({0, copy}));
  EXPECT_EQ(tasks_of(after([&](auto& released) { tracker.issue({0, copy}, released); }).ready), Tasks{pass});
  EXPECT_TRUE(tracker.is_issued({0, copy}));
  EXPECT_EQ(tasks_of(end(tracker, {0, copy}).ready), Tasks{host_pass});
  EXPECT_FALSE(feeds_pass(schedule_, copy, host_pass));
  EXPECT_FALSE(feeds_pass(schedule_, pass, pass)) << "a pass is no copy";
}

TEST_F(DependencyTrackerTest, APassThatIsSkippedFollowsTheEndOfItsCopies) {
  const auto copy = add(Op::transfer, Lane::to_device, Phase::forward);
  const auto pass = add_pass(plan::PassKind::backward, Phase::backward, {{copy}});
  auto tracker = make();
  static_cast<void>(begin(tracker, {.backward = false}));
  EXPECT_TRUE(after([&](auto& released) { tracker.issue({0, copy}, released); }).skipped.empty());
  EXPECT_EQ(tasks_of(end(tracker, {0, copy}).skipped), Tasks{pass});
}

TEST_F(DependencyTrackerTest, APassThatBeginsLaterFollowsCopiesOfTheInstanceBefore) {
  const auto copy = add(Op::transfer, Lane::to_device, Phase::forward);
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {{copy, true}});
  auto tracker = make();
  static_cast<void>(begin(tracker));
  static_cast<void>(end_pass(tracker));
  static_cast<void>(after([&](auto& released) { tracker.issue({0, copy}, released); }));
  EXPECT_EQ(tasks_of(begin(tracker).ready), (Tasks{copy, pass}));
  EXPECT_TRUE(end(tracker, {0, copy}).ready.empty()) << "the pass is released once";
}

/// Two chunks that passes ask for, read for the forward pass and again for the backward pass.
class AskedTasksTest : public DependencyTrackerTest {
 protected:
  AskedTasksTest() {
    for (const auto phase : {Phase::forward, Phase::backward}) {
      std::vector<plan::Dependency> reads;
      for (Index chunk = 0; chunk < 2; ++chunk) {
        reads.push_back({add(Op::transfer, Lane::read, phase, {}, chunk)});
        schedule_.tasks.back().when.only = OnlyIf::asked;
        if (phase == Phase::backward) schedule_.tasks.back().needs = {{schedule_.passes[0].task, false}};
      }
      const bool forward = phase == Phase::forward;
      if (!forward) reads.push_back({schedule_.passes[0].task});
      const Tasks asks{reads[0].task, reads[1].task};
      add_pass(forward ? plan::PassKind::forward : plan::PassKind::backward, phase,
               forward ? std::vector<plan::Dependency>{} : std::move(reads));
      schedule_.passes.back().asks = asks;
      reads_[forward ? 0 : 1] = asks;
    }
  }

  std::array<Tasks, 2> reads_;  ///< of the forward pass and of the backward pass, by chunk
};

TEST_F(AskedTasksTest, PassesGetTheChunksThatTheForwardPassAskedFor) {
  auto tracker = make();
  EXPECT_EQ(tasks_of(begin(tracker).ready), Tasks{schedule_.passes[0].task});
  EXPECT_EQ(tracker.find_pass(), 0U);
  tracker.begin_pass();
  const auto ask = [&](auto& released) { tracker.ask({1, 1}, released); };
  EXPECT_EQ(tasks_of(after(ask).ready), Tasks{reads_[0][1]});
  EXPECT_TRUE(after(ask).ready.empty()) << "it has been asked for";
  EXPECT_EQ(tracker.find_asked({1, 1}), Tasks{reads_[0][1]});
  EXPECT_TRUE(end(tracker, {0, reads_[0][1]}).awaited);
  const auto released = end_pass(tracker);
  EXPECT_EQ(tasks_of(released.ready), Tasks{reads_[1][1]});
  EXPECT_EQ(tasks_of(released.skipped), (Tasks{reads_[0][0], reads_[1][0]})) << "nobody has asked for the first chunk";
  EXPECT_EQ(tasks_of(end(tracker, {0, reads_[1][1]}).ready), Tasks{schedule_.passes[1].task});
}

TEST_F(AskedTasksTest, ABackwardPassIsRefusedOtherChunks) {
  auto tracker = make();
  static_cast<void>(begin(tracker));
  tracker.begin_pass();
  static_cast<void>(end_pass(tracker));
  EXPECT_EQ(tracker.find_pass(), 1U);
  tracker.begin_pass();
  EXPECT_ERROR(static_cast<void>(tracker.find_asked({0, 1})), ErrorCode::bad_input, "did not ask for");
}

/// The early update of a chunk, and its deferred update in the next instance.
class EarlyTasksTest : public DependencyTrackerTest {
 protected:
  EarlyTasksTest() {
    schedule_.tasks[deferred_].when.only = OnlyIf::no_early_update;
    schedule_.update_task[0] = deferred_;
  }

  const Index deferred_ = add(Op::update, Lane::update, Phase::update);
  const Index early_ = add(Op::update, Lane::update, Phase::early);
};

TEST_F(EarlyTasksTest, AnUpdateThatWasKeptIsNotDoneAgain) {
  for (const bool kept : {true, false}) {
    auto tracker = make();
    EXPECT_EQ(tasks_of(begin(tracker, {.early = true}).ready), Tasks{early_});
    EXPECT_TRUE(end(tracker, {0, early_}).awaited);
    EXPECT_EQ(tracker.early(), Tasks{0});
    const auto released = begin(tracker, {.update = true, .kept = kept});
    EXPECT_EQ(tasks_of(released.ready), kept ? Tasks{} : Tasks{deferred_});
    EXPECT_TRUE(tracker.early().empty());
  }
}

TEST_F(EarlyTasksTest, AnUpdateThatWasTakenBackIsLeftToTheNextInstance) {
  auto tracker = make();
  static_cast<void>(begin(tracker, {.early = true}));
  static_cast<void>(after([&](auto& released) { tracker.skip({0, early_}, released); }));
  EXPECT_TRUE(tracker.early().empty());
  EXPECT_TRUE(tracker.all_ended());
  EXPECT_EQ(tasks_of(begin(tracker, {.update = true, .kept = true}).ready), Tasks{deferred_});
}

TEST_F(EarlyTasksTest, UpdatesThatAreReadyTooLateAreSkipped) {
  const auto pass = add_pass(plan::PassKind::forward, Phase::forward, {});
  schedule_.tasks[early_].needs = {{pass, false}};
  auto tracker = make();
  static_cast<void>(begin(tracker, {.early = true}));
  tracker.end_early();
  EXPECT_EQ(tasks_of(end_pass(tracker).skipped), Tasks{early_});
  EXPECT_TRUE(tracker.early().empty());
}

TEST_F(DependencyTrackerTest, CopiesOfWeightsRunWhenTheseHaveChanged) {
  const auto updated = add(Op::transfer, Lane::to_device, Phase::forward);
  const auto stored = add(Op::transfer, Lane::to_device, Phase::forward);
  schedule_.tasks[updated].when.only = OnlyIf::changed_weights;
  schedule_.tasks[stored].when.only = OnlyIf::stored_weights;
  auto tracker = make();
  const auto run = [&](const Mode& mode) {
    const auto ready = begin(tracker, mode).ready;
    for (const auto& start : ready) static_cast<void>(end(tracker, start));
    return tasks_of(ready);
  };
  EXPECT_EQ(run({}), (Tasks{updated, stored})) << "the device has nothing";
  EXPECT_EQ(run({}), Tasks{});
  EXPECT_EQ(run({.update = true}), Tasks{updated});
  EXPECT_EQ(run({.stored = true}), (Tasks{updated, stored}));
  EXPECT_EQ(run({}), Tasks{});
}

TEST_F(DependencyTrackerTest, TimesAreOfTheNewestTrainingStepThatHasEnded) {
  const auto read = add(Op::transfer, Lane::read, Phase::forward);
  auto tracker = make();
  const auto run = [&](const Mode& mode, double end_time) {
    static_cast<void>(begin(tracker, mode));
    tracker.times({tracker.newest(), read}).end = end_time;
    static_cast<void>(end(tracker, {tracker.newest(), read}));
  };
  run({.backward = false}, 1);
  EXPECT_EQ(tracker.last_times()[read].end, 0);
  run({}, 2);
  run({.backward = false}, 3);
  EXPECT_EQ(tracker.last_times()[read].end, 2);
  EXPECT_EQ(tracker.last_instance(), 1U);
}

/// Lanes that end ready tasks in random order, and a caller who ends passes in theirs.
class RandomPlayer {
 public:
  RandomPlayer(const plan::Schedule& schedule, std::mt19937& random)
      : schedule_(schedule), random_(random), tracker_(schedule, work_) {}

  void play(int instances) {
    for (int i = 0; i < instances; ++i) {
      while (!tracker_.has_room()) end_one();
      change([&](auto& released) { tracker_.begin({.update = i > 0, .updates = 1}, released); });
      while (tracker_.find_pass() < schedule_.passes.size()) {
        while (!tracker_.is_ready(tracker_.pass())) end_one();
        if (random_() % 2 == 0 && !ready_.empty()) end_one();
        tracker_.begin_pass();
        note({tracker_.newest(), schedule_.passes[tracker_.pass()].task});
        change([&](auto& released) { tracker_.end_pass(released); });
      }
    }
    while (!ready_.empty()) end_one();
    EXPECT_TRUE(tracker_.all_ended());
    EXPECT_EQ(ended_.size(), instances * schedule_.tasks.size());
  }

 private:
  void end_one() {
    if (ready_.empty()) throw std::logic_error("nothing is left that could end");
    std::swap(ready_[random_() % ready_.size()], ready_.back());
    const auto it = ready_.back();
    ready_.pop_back();
    note(it);
    change([&](auto& released) { tracker_.end(it, released); });
  }
  template <class Change>
  void change(const Change& change) {
    Released released;
    change(released);
    for (const auto& it : released.skipped) note(it);
    for (const auto& it : released.ready) {
      for (const auto& need : schedule_.tasks[it.task].needs) {
        if (need.previous && it.instance == 0) continue;
        EXPECT_TRUE(ended_.contains({it.instance - (need.previous ? 1 : 0), need.task}))
            << "task " << it.task << " needs task " << need.task;
      }
      if (schedule_.tasks[it.task].op != Op::compute) ready_.push_back(it);
    }
  }
  void note(const Start& it) { EXPECT_TRUE(ended_.emplace(it.instance, it.task).second) << "it ends once"; }

  const plan::Schedule& schedule_;
  std::mt19937& random_;
  test::Tiles work_;
  DependencyTracker tracker_;
  std::vector<Start> ready_;
  std::set<std::pair<std::uint64_t, Index>> ended_;
};

TEST(DependencyTracker, KeepsToTheNeedsOfRandomSchedules) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto description = plan::test::describe(plan::test::random_shape(random, round));
    const auto layout = description.layout();
    auto schedule = plan::make_schedule(description, layout, plan::test::random_placement_of(layout, random), {});
    static_cast<void>(lay_out(schedule));
    add_reuse_dependencies(schedule);
    RandomPlayer(schedule, random).play(4);
  }
}

}  // namespace
}  // namespace spillway::execute
