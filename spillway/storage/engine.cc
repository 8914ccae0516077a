#include "spillway/storage/engine.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/failure.h"
#include "spillway/sys/thread.h"

namespace spillway::storage {
namespace {

constexpr Bytes kPieceSize = kExtentAlignment;
/// Transfers at once for which nothing is allocated.
constexpr std::size_t kReserve = 4096;
/// Attempts in a row that may move nothing (EINTR, EAGAIN) before a piece fails.
constexpr std::uint32_t kMostFruitless = 1000;

sys::Operation operation_of(Direction direction) {
  return direction == Direction::read ? sys::Operation::read : sys::Operation::write;
}

}  // namespace

Engine::Engine(const Volume& volume, EngineOptions options, const sys::RingFactory& ring)
    : volume_(volume),
      options_(std::move(options)),
      ledger_(volume.capacity(), kPieceSize),
      queue_(kPieceSize, kReserve),
      slots_(2 * std::size_t{options_.queue_depth}),
      completions_(options_.queue_depth) {
  free_slots_.reserve(slots_.size());
  finished_.reserve(slots_.size());
  for (std::size_t id = 0; id < slots_.size(); ++id) free_slots_.push_back(static_cast<SlotId>(id));
  taken_.reserve(kReserve);
  incoming_.reserve(kReserve);
  std::promise<void> ready;
  auto made = ready.get_future();
  thread_ = std::thread([&, this] { serve(ring, ready); });
  try {
    made.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Engine::~Engine() {
  drain();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ring_->wake();
    mourner_.notify_one();
  }
  thread_.join();
}

std::string Engine::register_memory(std::span<std::byte> memory) {
  std::promise<std::string> answer;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return "the path has failed";
    registration_ = &answer;
    to_register_ = memory;
    ring_->wake();
  }
  return answer.get_future().get();
}

void Engine::start(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  incoming_.push_back(transfer);
  ++outstanding_;
  if (broken_) mourner_.notify_one();
  if (std::exchange(wants_wake_, false)) ring_->wake();
}

void Engine::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return outstanding_ == 0; });
}

void Engine::serve(const sys::RingFactory& factory, std::promise<void>& ready) {
  sys::enter_service_thread("spill-path-" + options_.name);
  try {
    ring_ = factory(volume_.file(), options_.queue_depth);
    ring_name_ = ring_->name();
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  try {
    work();
  } catch (...) {
    mourn(std::current_exception());
  }
}

/// New pieces begin before finished ones are checked, so that the drive has work while we compute checksums.
void Engine::work() {
  while (true) {
    take_orders();
    issue();
    settle();
    const Next next = decide();
    if (next == Next::leave) return;
    if (next == Next::wait) reap();
  }
}

void Engine::take_orders() {
  std::promise<std::string>* registration = nullptr;
  std::span<std::byte> memory;
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(incoming_);
    registration = std::exchange(registration_, nullptr);
    memory = to_register_;
  }
  for (const Transfer& transfer : taken_) queue_.add(transfer);
  taken_.clear();
  if (registration != nullptr) registration->set_value(ring_->register_memory(memory));
}

void Engine::issue() {
  while (in_flight_ < options_.queue_depth && queue_.waiting()) issue(queue_.take());
  ring_->flush();
}

void Engine::issue(const Queue::Cut& cut) {
  const Transfer& transfer = queue_[cut.job].transfer;
  const SlotId id = free_slots_.back();
  Slot& slot = slots_[id];
  slot = {cut.job, transfer.direction, transfer.memory + cut.begin, transfer.offset + cut.begin, cut.bytes, 0, 0, 0};
  if (slot.direction == Direction::write) {
    ledger_.forget(slot.offset);
    if (options_.checksums) slot.checksum = checksum({slot.memory, slot.bytes}, slot.offset);
  } else if (const Bytes written = ledger_.at(slot.offset).bytes; written != slot.bytes) {
    queue_.fail(cut.job, never_written(place_of(slot), written));
    return end_piece(cut.job);
  }
  free_slots_.pop_back();
  ++in_flight_;
  meter_.begin(slot.direction);
  submit(id);
  if (slot.direction == Direction::write) ring_->flush();  // it runs while the next one's checksum is computed
}

void Engine::submit(SlotId id) {
  const Slot& slot = slots_[id];
  ring_->submit({operation_of(slot.direction), slot.memory + slot.moved, slot.bytes - slot.moved,
                 Volume::in_file(slot.offset + slot.moved), id});
}

/// Before it waits it sets the flag by which `start` knows that it must wake us.
Engine::Next Engine::decide() {
  const std::lock_guard lock(mutex_);
  if (!incoming_.empty() || registration_ != nullptr) return Next::work;
  if (stopping_ && in_flight_ == 0) return Next::leave;
  wants_wake_ = in_flight_ < options_.queue_depth;
  return Next::wait;
}

void Engine::reap() {
  const std::size_t count = ring_->wait(completions_);
  for (std::size_t i = 0; i < count; ++i) {
    judge(static_cast<SlotId>(completions_[i].tag), completions_[i].result);
  }
}

void Engine::judge(SlotId id, std::int32_t result) {
  Slot& slot = slots_[id];
  if (result == -EINTR || result == -EAGAIN) {
    if (++slot.fruitless < kMostFruitless) return submit(id);
    return finish(id, system_failure(place_of(slot), -result));
  }
  if (result < 0) return finish(id, system_failure(place_of(slot), -result));
  const auto moved = static_cast<std::uint32_t>(result);
  if (moved >= slot.bytes - slot.moved) return finish(id, nullptr);
  if (moved == 0) return finish(id, stalled(place_of(slot), slot.moved));
  const std::uint32_t whole = moved / kTransferAlignment * kTransferAlignment;  // O_DIRECT goes on from there
  slot.fruitless = whole > 0 ? 0 : slot.fruitless + 1;
  slot.moved += whole;
  if (slot.fruitless >= kMostFruitless) return finish(id, stalled(place_of(slot), slot.moved));
  submit(id);
}

void Engine::finish(SlotId id, std::exception_ptr error) {
  Slot& slot = slots_[id];
  --in_flight_;
  meter_.end(slot.direction, error ? 0 : slot.bytes);
  if (error) queue_.fail(slot.job, std::move(error));
  finished_.push_back(id);
}

void Engine::settle() {
  for (const SlotId id : finished_) {
    const Slot& slot = slots_[id];
    const bool failed = queue_[slot.job].error != nullptr;
    if (!failed && slot.direction == Direction::write) ledger_.record(slot.offset, {slot.checksum, slot.bytes});
    if (!failed && slot.direction == Direction::read && options_.checksums &&
        checksum({slot.memory, slot.bytes}, slot.offset) != ledger_.at(slot.offset).checksum) {
      queue_.fail(slot.job, corrupt(place_of(slot)));
    }
    free_slots_.push_back(id);
    end_piece(slot.job);
  }
  finished_.clear();
}

void Engine::end_piece(Queue::Id id) {
  if (queue_.end_piece(id)) end(id);
}

void Engine::end(Queue::Id id) {
  {
    Job& job = queue_[id];
    const Transfer transfer = job.transfer;
    const std::exception_ptr error = std::move(job.error);
    queue_.release(id);
    transfer.done(transfer.context, transfer.token, error);
  }
  const std::lock_guard lock(mutex_);
  if (--outstanding_ == 0) idle_.notify_all();
}

/// The ring itself has failed: everything that is here, and everything that still comes, ends with that.
void Engine::mourn(const std::exception_ptr& cause) {
  std::unique_lock lock(mutex_);
  broken_ = true;
  wants_wake_ = false;
  while (true) {
    taken_.swap(incoming_);
    if (registration_ != nullptr) std::exchange(registration_, nullptr)->set_value("the path has failed");
    lock.unlock();
    for (const Transfer& transfer : taken_) queue_.add(transfer);
    taken_.clear();
    for (const Queue::Id id : queue_.alive()) {
      queue_.fail(id, cause);
      end(id);
    }
    lock.lock();
    if (!incoming_.empty()) continue;
    if (stopping_) return;
    mourner_.wait(lock, [this] { return stopping_ || !incoming_.empty(); });
  }
}

Subject Engine::place_of(const Slot& slot) {
  return {volume_.path(), queue_[slot.job].transfer.what, slot.direction, Volume::in_file(slot.offset), slot.bytes};
}

}  // namespace spillway::storage
