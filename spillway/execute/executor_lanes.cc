// The executor's side of the lanes: what it hands to them, and what they tell it.
#include <algorithm>
#include <utility>

#include "spillway/execute/executor.h"

namespace spillway::execute {

using plan::Phase;
using plan::Task;

// ---- transfers ----

/// Counted here, and not where they get ready: what a failure keeps from getting here is waited for by nobody.
void Executor::launch(std::vector<Start>& transfers) {
  if (network_) network_->start();
  if (transfers.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ += transfers.size();
  }
  for (const auto& start : transfers) {
    try {
      launch_transfer(start, schedule_.tasks[start.task]);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fail(std::current_exception());
      --in_flight_;
    }
  }
  transfers.clear();
}

void Executor::launch_transfer(const Start& start, const Task& task) {
  const auto deadline = start.instance * schedule_.positions + task.deadline;
  const auto token = start.instance * schedule_.tasks.size() + start.task;
  const auto& mode = bank(start.instance).mode;
  if (is_of_device(task.lane)) {
    const auto bytes = task.by_rows ? std::min(task.bytes, mode.packed_rows) : task.bytes;
    bank(start.instance).times[start.task].copied = bytes;
    return copies_->start(start.instance, start.task, bytes, deadline, token);
  }
  const bool updates = task.when.phase == Phase::update;
  const auto& memory = task.memory();
  store_->start({.direction = traits(task.lane).fetches ? storage::Direction::read : storage::Direction::write,
                 .kind = task.what.kind,
                 .subject = task.what.index,
                 .memory = arena_ + schedule_.buffers[memory.buffer].offset + memory.offset,
                 .bytes = task.bytes,
                 .version = updates ? mode.updated : mode.step,
                 .snapshot = updates && schedule_.makes_snapshot(task.what.index, mode.updates),
                 .deadline = deadline,
                 .done = &Executor::transfer_done,
                 .context = this,
                 .token = token,
                 .last_path = &bank(start.instance).times[start.task].path});
}

Start Executor::start_of(std::uint64_t token) const noexcept {
  return {token / schedule_.tasks.size(), static_cast<Index>(token % schedule_.tasks.size())};
}

void Executor::transfer_done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
  auto& self = *static_cast<Executor*>(context);
  const auto start = self.start_of(token);
  thread_local std::vector<Start> ready;  // several paths end transfers at once; grows to its size and stays
  std::unique_lock lock(self.mutex_);
  auto& its_bank = self.bank(start.instance);
  its_bank.times[start.task].end = self.now();
  if (its_bank.issued[start.task] && --self.feeding_ == 0) self.compute_wake_.notify_all();
  if (error) {  // may come from within launch(): `ready` is in use
    self.fail(error);
  } else if (!self.failure_) {
    try {
      ready.clear();
      self.skipped_.clear();
      self.end_task(start, ready);
      lock.unlock();
      self.launch(ready);
      lock.lock();
    } catch (...) {
      if (!lock) lock.lock();
      self.fail(std::current_exception());
    }
  }
  // Counted down last: the destructor may run as soon as nothing is in flight.
  if (--self.in_flight_ == 0) self.idle_.notify_all();
}

void Executor::network_ended(const Start& start, const std::exception_ptr& error) noexcept {
  std::vector<Start> ready;
  std::unique_lock lock(mutex_);
  bank(start.instance).times[start.task].end = now();
  try {
    if (error) std::rethrow_exception(error);
    if (failure_) return;
    skipped_.clear();
    end_task(start, ready);
    compute_wake_.notify_all();
    lock.unlock();
    launch(ready);
  } catch (...) {
    if (!lock) lock.lock();
    fail(std::current_exception());
  }
}

// ---- updates ----

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
