// Instances of a step: how they begin, and the updates that do not wait for their end.
#include <algorithm>

#include "spillway/execute/executor.h"

namespace spillway::execute {

using plan::Phase;
using plan::Task;

namespace {

struct ChunkFacts {
  const InstanceBank& bank;
  const UpdateWork& work;
  [[nodiscard]] bool has_refit(plan::Index c) const { return work.refits(c); }
  [[nodiscard]] bool is_refit_due(plan::Index c) const { return work.refit_is_due(c); }
  [[nodiscard]] bool keeps_early_update(plan::Index c) const { return bank.kept[c] != 0; }
  [[nodiscard]] bool is_asked(plan::Index c) const { return bank.asked.is_asked(c); }
  [[nodiscard]] bool was_asked(plan::Index c) const { return bank.asked.was_asked(c); }
  [[nodiscard]] bool is_due(plan::Index c) const { return bank.asked.is_due(c); }
};

}  // namespace

bool Executor::runs(const InstanceBank& its_bank, const Task& task) const {
  return task.when.runs(its_bank.facts, ChunkFacts{its_bank, work_}, task.what.index, task.what.end());
}

void Executor::begin(Mode mode) {
  if (store_ != nullptr && mode.update) store_->reserve_gradients(mode.updated);
  if (store_ != nullptr && mode.backward && !mode.trial) store_->expect_gradients(mode.step);
  std::unique_lock lock(mutex_);
  const auto instance = instances_;
  auto& now_bank = bank(instance);
  help_until(lock, idle_, [&] { return !now_bank.open; });
  throw_failure();
  settle_waits(lock);
  waits_.begin(instance);
  const bool first = instance == 0;
  const auto& before = bank(instance + 1);
  const auto n = schedule_.tasks.size();
  now_bank.instance = instance;
  if (copies_) copies_->begin(instance);
  if (network_) network_->begin(instance);
  open_bank(now_bank, mode);
  std::fill(pass_ready_.begin(), pass_ready_.end(), 0);
  for (Index t = 0; t < n; ++t) {
    std::uint32_t count = 1;  // kept back until all are counted
    for (const auto& need : schedule_.tasks[t].needs) {
      const bool released = need.previous && (first || before.ended[need.task] ||
                                              follows_issue({instance, t}, {instance - 1, need.task}));
      count += !released;
    }
    now_bank.waiting[t] = count + (now_bank.asked.holds(schedule_.tasks[t], now_bank.facts) ? 1 : 0);
    now_bank.ended[t] = now_bank.issued[t] = 0;
    now_bank.times[t] = {};
  }
  ++instances_;
  pass_ = 0;
  caller_transfers_.clear();
  for (Index t = 0; t < n; ++t) {
    if (--now_bank.waiting[t] == 0) {
      skipped_.clear();
      make_ready({instance, t}, caller_transfers_, skipped_);
      while (!skipped_.empty()) {
        const auto start = skipped_.back();
        skipped_.pop_back();
        end_task(start, caller_transfers_);
      }
    }
  }
  lock.unlock();
  launch(caller_transfers_);
  if (pass_clock_ && mode.passes) pass_clock_->begin_instance(instance);  // may wait for the device
}

void Executor::open_bank(InstanceBank& its_bank, Mode mode) {
  its_bank.mode = mode;
  its_bank.open = true;
  its_bank.left = schedule_.tasks.size();
  if (mode.update || mode.stored) changed_.updated = true;
  if (mode.stored) changed_.stored = true;
  its_bank.facts = {.update = mode.update,
                    .passes = mode.passes,
                    .backward = mode.backward,
                    .early = mode.early,
                    .trial = mode.trial,
                    .catches_up = true,
                    .has_changed_weights = changed_.updated,
                    .has_stored_weights = changed_.stored,
                    .updates = mode.updates};
  if (mode.passes) changed_ = {.updated = false, .stored = false};
  std::fill(its_bank.kept.begin(), its_bank.kept.end(), std::uint8_t{0});
  for (const auto chunk : early_) its_bank.kept[chunk] = mode.kept ? 1 : 0;
  early_.clear();
  its_bank.asked.begin(schedule_, its_bank.facts, bank(instances_ + 1).asked, work_);
}

const std::vector<plan::Index>& Executor::end_early() {
  std::unique_lock lock(mutex_);
  if (instances_ == 0) return early_;
  bank(instances_ - 1).facts.early = false;  // those that are not ready yet are skipped when they are
  caller_transfers_.clear();
  drop_early(caller_transfers_);
  lock.unlock();
  launch(caller_transfers_);
  lock.lock();
  help_until(lock, compute_wake_, [&] { return !updates_->early_active(); });
  throw_failure();
  return early_;
}

void Executor::drop_early(std::vector<Start>& transfers) {
  skipped_.clear();
  while (const auto start = updates_->take_early()) end_task(*start, transfers);
}

void Executor::update_begins(const Start& start, double now) {
  bank(start.instance).times[start.task].start = now;
}

void Executor::update_ended(const Start& start, double now, std::size_t lane, std::unique_lock<std::mutex>& lock) {
  const auto& task = schedule_.tasks[start.task];
  bank(start.instance).times[start.task].end = now;
  if (task.when.phase == Phase::early) {
    early_.push_back(task.what.index);
    compute_wake_.notify_all();
  }
  auto& transfers = lane_transfers_[lane];
  transfers.clear();
  skipped_.clear();
  end_task(start, transfers);
  lock.unlock();
  launch(transfers);
  lock.lock();
}

void Executor::tiles_begin() {
  compute_wake_.notify_all();
  idle_.notify_all();
}

}  // namespace spillway::execute
