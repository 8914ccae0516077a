// The executor's side of transfers with paths and of copies with a device.
#include <algorithm>
#include <utility>

#include "spillway/execute/executor.h"

namespace spillway::execute {

using plan::Phase;
using plan::Task;
namespace {

/// The chunk in the task's slot. Chunks that swap places have weights alone.
std::size_t subject_of(const Task& task, const WeightSlots* slots) {
  const bool by_chunk = traits(task.what.kind).numbered == plan::Numbered::by_chunk;
  return by_chunk && slots != nullptr ? slots->chunk_in(task.what.index) : task.what.index;
}

}  // namespace

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
                 .subject = subject_of(task, slots_),
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

/// Passes alone are released, and those are the caller's: nothing is launched.
void Executor::transfer_issued(void* context, std::uint64_t token) noexcept {
  auto& self = *static_cast<Executor*>(context);
  const auto start = self.start_of(token);
  const std::lock_guard lock(self.mutex_);
  ++self.feeding_;
  self.bank(start.instance).issued[start.task] = 1;
  std::vector<Start> none;
  self.each_follower(start, [&](const Start& follower) {
    if (self.follows_issue(follower, start)) self.release(follower, none, none);
  });
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

}  // namespace spillway::execute
