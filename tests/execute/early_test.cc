// What becomes of early updates: done, not begun, kept, put back.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "spillway/execute/executor.h"
#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

/// Notes what is updated and when; an early update of `stop` waits until it is let go.
class Notes : public UpdateWork {
 public:
  explicit Notes(plan::Index stop = plan::kNone) : stop_(stop) {}

  [[nodiscard]] std::size_t slices(plan::Index) const override { return 3; }
  void save(plan::Index chunk, std::size_t) override {
    const std::lock_guard lock(mutex_);
    ++saved_[chunk];
  }
  [[nodiscard]] std::size_t tiles(plan::Index, std::size_t) const override { return 2; }
  void prepare(plan::Index chunk, bool early) override {
    std::unique_lock lock(mutex_);
    EXPECT_EQ(saved_[chunk], early ? 3 : 0) << "chunk " << chunk << ": all of it is saved before the first tile";
    saved_[chunk] = 0;
    if (!early || chunk != stop_) return;
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return let_go_; });
  }
  void run(plan::Index chunk, std::size_t, std::size_t tile, bool early) override {
    const std::lock_guard lock(mutex_);
    if (tile != 0) return;
    (early ? early_chunks_ : deferred_).insert(chunk);
    changed_.notify_all();
  }

  void wait_until_early(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return early_chunks_.size() >= count; });
  }
  void wait_until_stopped() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] std::set<plan::Index> deferred() {
    const std::lock_guard lock(mutex_);
    return deferred_;
  }
  [[nodiscard]] std::set<plan::Index> take(bool early) {
    const std::lock_guard lock(mutex_);
    return std::exchange(early ? early_chunks_ : deferred_, {});
  }

 private:
  const plan::Index stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<plan::Index, int> saved_;
  bool reached_ = false, let_go_ = false;
  std::set<plan::Index> early_chunks_, deferred_;
};

class EarlyExecutor : public ::testing::Test {
 protected:
  EarlyExecutor()
      : description_(plan::test::describe({.layers = 3, .tied = false})),
        layout_(description_.blocks, description_.chunk_elements) {
    schedule_ =
        plan::make_schedule(description_, layout_, plan::test::placement_of(layout_, {.when = plan::When::early}), {});
    static_cast<void>(lay_out(schedule_));
    add_reuse_dependencies(schedule_);
    for (plan::Index c = 0; c < layout_.chunks().size(); ++c) {
      (schedule_.early[c].task == plan::kNone ? late_ : early_).insert(c);
    }
  }

  static void step(Executor& executor) {
    while (executor.next() != nullptr) executor.done();
  }
  [[nodiscard]] std::set<plan::Index> all() const {
    auto out = early_;
    out.insert(late_.begin(), late_.end());
    return out;
  }
  static std::set<plan::Index> set_of(const std::vector<plan::Index>& chunks) { return {chunks.begin(), chunks.end()}; }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  std::set<plan::Index> early_, late_;  ///< that can be early, and not
};

TEST_F(EarlyExecutor, WhatIsKeptIsNotDoneAgainAndWhatIsPutBackIs) {
  ASSERT_FALSE(early_.empty());
  ASSERT_FALSE(late_.empty()) << "an embedding is never early";
  for (const bool kept : {true, false}) {
    Notes notes;
    Executor executor(schedule_, nullptr, nullptr, notes, {.own = kept ? 1U : 3U});
    executor.begin({.early = true});
    step(executor);
    notes.wait_until_early(early_.size());
    EXPECT_EQ(set_of(executor.end_early()), early_);
    EXPECT_EQ(notes.take(true), early_);
    executor.begin({.update = true, .kept = kept});
    step(executor);
    executor.drain();
    EXPECT_EQ(notes.take(false), kept ? late_ : all());
    EXPECT_TRUE(executor.end_early().empty());
  }
}

TEST_F(EarlyExecutor, WhatHasNotBegunByTheEndIsLeftToTheNextInstance) {
  const auto first = *std::max_element(early_.begin(), early_.end(), [&](auto a, auto b) {
    return schedule_.tasks[schedule_.early[a].task].deadline > schedule_.tasks[schedule_.early[b].task].deadline;
  });
  Notes notes(first);
  Executor executor(schedule_, nullptr, nullptr, notes);
  executor.begin({.early = true});
  while (const auto* pass = executor.next()) {
    const bool made = (*pass)[plan::Operand::gradient] != plan::kNone;
    executor.done();
    if (made && pass->position == schedule_.tasks[schedule_.early[first].task].deadline) notes.wait_until_stopped();
  }
  std::vector<plan::Index> done;
  std::thread end([&] { done = executor.end_early(); });
  notes.let_go();
  end.join();
  EXPECT_TRUE(set_of(done).contains(first)) << "the one under way is waited for";
  EXPECT_EQ(notes.take(true), set_of(done));
  executor.begin({.update = true, .kept = true});
  step(executor);
  executor.drain();
  auto expected = all();
  for (const auto c : done) expected.erase(c);
  EXPECT_EQ(notes.take(false), expected);
}

TEST_F(EarlyExecutor, OnSharedCoresUpdatesRunOnlyWhileTheCallerWaits) {
  for (const unsigned cores : {1U, 2U, 5U}) {
    Notes notes;
    Executor executor(schedule_, nullptr, nullptr, notes, {.shared = cores});
    executor.begin({.update = true});
    std::set<plan::Index> due;  // what the passes so far have waited for
    while (const auto* pass = executor.next()) {
      for (const auto c : all()) {
        if (schedule_.tasks[schedule_.update_task[c]].deadline <= pass->position) due.insert(c);
      }
      const auto before = notes.deferred();
      EXPECT_TRUE(std::ranges::includes(before, due)) << "a pass waits for its chunks";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // compute
      EXPECT_LE(notes.deferred().size(), before.size() + 1) << "one may be under way when the wait ends, no more";
      executor.done();
    }
    executor.drain();
    EXPECT_EQ(notes.deferred(), all());
  }
}

TEST_F(EarlyExecutor, AStepWithoutAPredictionHasNoEarlyUpdates) {
  Notes notes;
  Executor executor(schedule_, nullptr, nullptr, notes);
  executor.begin({.early = false});
  step(executor);
  EXPECT_TRUE(executor.end_early().empty());
  executor.begin({.update = true});
  step(executor);
  executor.drain();
  EXPECT_TRUE(notes.take(true).empty());
  EXPECT_EQ(notes.take(false), all());
}

}  // namespace
}  // namespace spillway::execute
