#include "spillway/execute/transfers.h"

#include <algorithm>

namespace spillway::execute {

using plan::Index;
using plan::Task;

namespace {

/// The chunk in the task's slot. Chunks that swap places have weights alone.
std::size_t subject_of(const Task& task, const WeightSlots* slots) {
  const bool by_chunk = traits(task.what.kind).numbered == plan::Numbered::by_chunk;
  return by_chunk && slots != nullptr ? slots->chunk_in(task.what.index) : task.what.index;
}

}  // namespace

Transfers::Transfers(const plan::Schedule& schedule, const Ends& ends, DependencyTracker& tracker, std::mutex& mutex,
                     Client& client)
    : schedule_(schedule), ends_(ends), tracker_(tracker), mutex_(mutex), client_(client) {
  const auto& [device, stream, updates] = ends.device;
  if (device == nullptr) return;
  const Listener listener{&Transfers::on_issued, &Transfers::on_end, this};
  copies_ = std::make_unique<Copies>(schedule, ends.arena, *device, stream, *updates, listener);
}

void Transfers::announce(const Mode& mode) {
  if (ends_.store == nullptr) return;
  if (mode.update) ends_.store->reserve_gradients(mode.updated);
  if (mode.backward && !mode.trial) ends_.store->expect_gradients(mode.step);
}

/// Counted here, and not where they get ready: what a failure keeps from getting here is waited for by nobody.
void Transfers::start(std::span<const Start> starts) {
  if (starts.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ += starts.size();
  }
  for (const auto& start : starts) {
    try {
      hand_out(start);
    } catch (...) {
      end(start, std::current_exception());
    }
  }
}

void Transfers::hand_out(const Start& start) {
  const auto& task = schedule_.tasks[start.task];
  const auto deadline = start.instance * schedule_.positions + task.deadline;
  const auto token = start.instance * schedule_.tasks.size() + start.task;
  const auto& mode = tracker_.mode(start.instance);
  auto& times = tracker_.times(start);
  if (is_of_device(task.lane)) {
    times.copied = task.by_rows ? std::min(task.bytes, mode.packed_rows) : task.bytes;
    return copies_->start(start.instance, start.task, times.copied, deadline, token);
  }
  const bool updates = task.when.phase == plan::Phase::update;
  const auto& memory = task.memory();
  ends_.store->start({.direction = traits(task.lane).fetches ? storage::Direction::read : storage::Direction::write,
                      .kind = task.what.kind,
                      .subject = subject_of(task, ends_.slots),
                      .memory = ends_.arena + schedule_.buffers[memory.buffer].offset + memory.offset,
                      .bytes = task.bytes,
                      .version = updates ? mode.updated : mode.step,
                      .snapshot = updates && schedule_.makes_snapshot(task.what.index, mode.updates),
                      .deadline = deadline,
                      .done = &Transfers::on_end,
                      .context = this,
                      .token = token,
                      .last_path = &times.path});
}

Start Transfers::start_of(std::uint64_t token) const noexcept {
  return {token / schedule_.tasks.size(), static_cast<Index>(token % schedule_.tasks.size())};
}

void Transfers::on_issued(void* context, std::uint64_t token) noexcept {
  auto& self = *static_cast<Transfers*>(context);
  const std::lock_guard lock(self.mutex_);
  ++self.feeding_;
  self.client_.transfer_issued(self.start_of(token));
}

void Transfers::on_end(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
  auto& self = *static_cast<Transfers*>(context);
  self.end(self.start_of(token), error);
}

void Transfers::end(const Start& start, const std::exception_ptr& error) noexcept {
  Lock lock(mutex_);
  if (tracker_.is_issued(start) && --feeding_ == 0) client_.issued_ended();
  client_.transfer_ended(start, error, lock);
  // Counted down last: the client may be destroyed as soon as nothing is in flight.
  if (--in_flight_ == 0) idle_.notify_all();
}

void Transfers::stop() {
  Lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

/// The journal is asked last.
bool Transfers::are_stalled() const {
  return ends_.store != nullptr && in_flight_ > 0 && ends_.store->stalled() >= in_flight_;
}

void Transfers::give_up(const std::exception_ptr& error) {
  if (ends_.store != nullptr) ends_.store->give_up(error);
}

}  // namespace spillway::execute
