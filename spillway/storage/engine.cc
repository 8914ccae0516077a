#include "spillway/storage/engine.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/thread.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/failure.h"
#include "spillway/sys/thread.h"

namespace spillway::storage {
namespace {

constexpr Bytes kPieceSize = kExtentAlignment;
/// So many transfers at once need no allocation.
constexpr std::size_t kReserve = 4096;
/// So many syncs at once need no allocation.
constexpr std::size_t kReservedSyncs = 256;
/// The tag of a sync; slots are numbered from 0.
constexpr std::uint64_t kSyncTag = ~std::uint64_t{1};
/// Attempts in a row that may move nothing (EINTR, EAGAIN) before a piece fails.
constexpr std::uint32_t kMostFruitless = 1000;

sys::Operation operation_of(Direction direction) {
  return direction == Direction::read ? sys::Operation::read : sys::Operation::write;
}

}  // namespace

Engine::Engine(const Volume& volume, EngineOptions options, const sys::RingFactory& ring, std::unique_ptr<Share> share)
    : volume_(volume),
      options_(std::move(options)),
      ledger_(volume.capacity(), kPieceSize),
      queue_(kPieceSize, kReserve),
      slots_(2 * std::size_t{options_.queue_depth}),
      completions_(options_.queue_depth + 1),
      share_(std::move(share)) {
  free_slots_.reserve(slots_.size());
  finished_.reserve(slots_.size());
  for (std::size_t id = 0; id < slots_.size(); ++id) free_slots_.push_back(static_cast<SlotId>(id));
  taken_.reserve(kReserve);
  incoming_.reserve(kReserve);
  for (auto* requests : {&sync_.waiting, &sync_.served, &incoming_syncs_}) requests->reserve(kReservedSyncs);
  std::promise<void> ready;
  auto made = ready.get_future();
  thread_ = start_thread([&, this] { serve(ring, ready); });
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
    const MutexLock lock(mutex_);
    stopping_ = true;
    ring_->wake();
    failed_wake_.notify_one();
  }
  thread_.join();
}

std::string Engine::register_memory(std::span<std::byte> memory) {
  std::promise<std::string> answer;
  {
    const MutexLock lock(mutex_);
    if (broken_) return "the path has failed";
    registration_ = &answer;
    to_register_ = memory;
    ring_->wake();
  }
  return answer.get_future().get();
}

void Engine::start(const Transfer& transfer) {
  const MutexLock lock(mutex_);
  incoming_.push_back(transfer);
  ++outstanding_;
  if (broken_) failed_wake_.notify_one();
  if (std::exchange(wants_wake_, false)) ring_->wake();
}

void Engine::sync(Done done, void* context, std::uint64_t token) {
  const MutexLock lock(mutex_);
  incoming_syncs_.push_back({done, context, token});
  ++outstanding_;
  if (broken_) failed_wake_.notify_one();
  if (std::exchange(wants_sync_wake_, false)) ring_->wake();
}

void Engine::drain() {
  MutexLock lock(mutex_);
  while (outstanding_ != 0) idle_.wait(lock);
}

void Engine::serve(const sys::RingFactory& factory, std::promise<void>& ready) {
  sys::enter_service_thread("spill-path-" + options_.name);
  try {
    ring_ = factory(volume_.file(), options_.queue_depth + 1);  // one for the sync
    ring_name_ = ring_->name();
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  try {
    work();
  } catch (...) {
    fail_all_pending(std::current_exception());
  }
}

/// New pieces begin before finished ones are checked, so that the drive has work while we compute checksums.
void Engine::work() {
  while (true) {
    take_orders();
    begin_sync();
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
    const MutexLock lock(mutex_);
    taken_.swap(incoming_);
    sync_.waiting.insert(sync_.waiting.end(), incoming_syncs_.begin(), incoming_syncs_.end());
    incoming_syncs_.clear();
    registration = registration_;
    memory = to_register_;
  }
  for (; added_ < taken_.size(); ++added_) queue_.add(taken_[added_]);
  taken_.clear();
  added_ = 0;
  if (registration == nullptr) return;
  auto told = ring_->register_memory(memory);  // where it throws, fail_all_pending() answers
  const MutexLock lock(mutex_);
  registration_ = nullptr;
  registration->set_value(std::move(told));
}

void Engine::issue() {
  refused_ = {false, false};  // a piece has ended, or there is something new: worth asking again
  while (in_flight() < options_.queue_depth) {
    const auto direction = choose();
    if (!direction) break;
    if (share_ && !share_->try_acquire(*direction, kPieceSize)) {
      refused_[index(*direction)] = true;  // one of ours is in flight that way: its end brings us here
      continue;
    }
    issue(queue_.take(*direction));
  }
  ring_->flush();
}

bool Engine::waiting(Direction direction) {
  return !refused_[index(direction)] && queue_.waiting(direction);
}

/// The more urgent direction is next, unless it has its half of the depth and the other one not yet. When both have
/// their half, the depth is used up, and this is not called.
std::optional<Direction> Engine::choose() {
  const bool reads = waiting(Direction::read);
  const bool writes = waiting(Direction::write);
  if (!reads && !writes) return std::nullopt;
  if (!reads || !writes) return reads ? Direction::read : Direction::write;
  const unsigned half = options_.queue_depth - options_.queue_depth / 2;
  if (in_flight(Direction::read) >= half) return Direction::write;
  if (in_flight(Direction::write) >= half) return Direction::read;
  return queue_.most_urgent();
}

void Engine::issue(const Queue::Cut& cut) {
  const Transfer& transfer = queue_[cut.job].transfer;
  const SlotId id = free_slots_.back();
  Slot& slot = slots_[id];
  slot = {cut.job,  transfer.direction, transfer.area, transfer.memory + cut.begin, transfer.offset + cut.begin,
          cut.bytes};
  if (slot.area == Area::data && slot.direction == Direction::write) {
    ledger_.forget(slot.offset);
    if (options_.checksums) slot.checksum = checksum({slot.memory, slot.bytes}, slot.offset);
  } else if (slot.area == Area::data && ledger_.at(slot.offset).bytes != slot.bytes) {
    queue_.fail(cut.job, never_written(place_of(slot), ledger_.at(slot.offset).bytes));
    if (share_) share_->release(slot.direction, kPieceSize);
    return end_piece(cut.job);
  }
  free_slots_.pop_back();
  ++in_flight(slot.direction);
  meter_.begin(slot.direction);
  submit(id);
  if (slot.direction == Direction::write) ring_->flush();  // it runs while the next one's checksum is computed
}

void Engine::submit(SlotId id) {
  const Slot& slot = slots_[id];
  ring_->submit({operation_of(slot.direction), slot.memory + slot.moved, slot.bytes - slot.moved,
                 volume_.in_file(slot.area, slot.offset + slot.moved), id});
}

/// Requests that come while a flush is under way wait for the next one: the first says nothing of what completed after
/// it began.
void Engine::begin_sync() {
  if (sync_.in_flight || sync_.waiting.empty()) return;
  sync_.served.swap(sync_.waiting);
  if (sync_.failure) return end(sync_.served, sync_.failure);
  sync_.in_flight = true;
  sync_.fruitless = 0;
  meter_.begin_sync();
  submit_sync();
}

void Engine::submit_sync() {
  ring_->submit({sys::Operation::sync, nullptr, 0, 0, kSyncTag});
}

/// Before the thread waits it sets the flags by which `start` and `sync` know that they must wake it.
Engine::Next Engine::decide() {
  const MutexLock lock(mutex_);
  if (!incoming_.empty() || !incoming_syncs_.empty() || registration_ != nullptr) return Next::work;
  if (!sync_.in_flight && !sync_.waiting.empty()) return Next::work;
  if (stopping_ && in_flight() == 0 && !sync_.in_flight) return Next::leave;
  wants_wake_ = in_flight() < options_.queue_depth;
  wants_sync_wake_ = !sync_.in_flight;
  return Next::wait;
}

void Engine::reap() {
  const std::size_t count = ring_->wait(completions_);
  for (const sys::Completion& completion : std::span(completions_).first(count)) {
    if (completion.tag == kSyncTag) {
      judge_sync(completion.result);
    } else {
      judge(static_cast<SlotId>(completion.tag), completion.result);
    }
  }
}

void Engine::judge_sync(std::int32_t result) {
  const bool interrupted = result == -EINTR || result == -EAGAIN;
  if (interrupted && ++sync_.fruitless < kMostFruitless) return submit_sync();
  sync_.result = result;
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
  --in_flight(slot.direction);
  if (share_) share_->release(slot.direction, kPieceSize);
  meter_.end(slot.direction, error ? 0 : slot.bytes);
  if (error) queue_.fail(slot.job, std::move(error));
  finished_.push_back(id);
}

void Engine::settle() {
  for (const SlotId id : finished_) {
    const Slot& slot = slots_[id];
    const bool failed = queue_[slot.job].error != nullptr;
    if (!failed && slot.area == Area::data) settle_data(slot);
    free_slots_.push_back(id);
    end_piece(slot.job);
  }
  finished_.clear();
  settle_sync();
}

void Engine::settle_data(const Slot& slot) {
  if (slot.direction == Direction::write) return ledger_.record(slot.offset, {slot.checksum, slot.bytes});
  const std::uint64_t expected = ledger_.at(slot.offset).checksum;
  if (!options_.checksums || expected == 0) return;
  if (checksum({slot.memory, slot.bytes}, slot.offset) != expected) queue_.fail(slot.job, corrupt(place_of(slot)));
}

void Engine::settle_sync() {
  if (!sync_.result) return;
  const std::int32_t result = *std::exchange(sync_.result, std::nullopt);
  sync_.in_flight = false;
  meter_.end_sync(result >= 0);
  if (result < 0) sync_.failure = unflushed(volume_.path(), -result);
  end(sync_.served, sync_.failure);
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
  count_ended();
}

void Engine::end(std::vector<Request>& requests, const std::exception_ptr& error) {
  for (const Request& request : requests) {
    request.done(request.context, request.token, error);
    count_ended();
  }
  requests.clear();
}

void Engine::count_ended() {
  const MutexLock lock(mutex_);
  if (--outstanding_ == 0) idle_.notify_all();
}

/// The ring itself has failed, or memory has run out: everything that is pending, and everything that still comes, ends
/// with that error. This function allocates nothing.
void Engine::fail_all_pending(const std::exception_ptr& cause) {
  MutexLock lock(mutex_);
  broken_ = true;
  wants_wake_ = false;
  wants_sync_wake_ = false;
  while (true) {
    std::vector<Request> syncs = std::exchange(incoming_syncs_, {});
    if (registration_ != nullptr) std::exchange(registration_, nullptr)->set_value(std::move(unregistered_));
    lock.unlock();
    for (; added_ < taken_.size(); ++added_) {
      taken_[added_].done(taken_[added_].context, taken_[added_].token, cause);
      count_ended();
    }
    taken_.clear();
    added_ = 0;
    for (Queue::Id id = 0; id < queue_.size(); ++id) {
      if (!queue_.alive(id)) continue;
      queue_.fail(id, cause);
      end(id);
    }
    for (auto* requests : {&sync_.served, &sync_.waiting, &syncs}) end(*requests, cause);
    lock.lock();
    taken_.swap(incoming_);
    while (taken_.empty() && incoming_.empty() && incoming_syncs_.empty()) {
      if (stopping_) return;
      failed_wake_.wait(lock);
    }
  }
}

Subject Engine::place_of(const Slot& slot) {
  return {volume_.path(), queue_[slot.job].transfer.what, slot.direction, volume_.in_file(slot.area, slot.offset),
          slot.bytes};
}

}  // namespace spillway::storage
