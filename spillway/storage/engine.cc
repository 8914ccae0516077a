#include "spillway/storage/engine.h"

#include <algorithm>
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
      flushes_(volume.path(), meter_, kReservedSyncs),
      turns_(options_.queue_depth, kPieceSize, std::move(share)) {
  free_slots_.reserve(slots_.size());
  finished_.reserve(slots_.size());
  for (std::size_t id = 0; id < slots_.size(); ++id) free_slots_.push_back(static_cast<SlotId>(id));
  taken_.reserve(kReserve);
  incoming_.reserve(kReserve);
  incoming_syncs_.reserve(kReservedSyncs);
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
    if (flushes_.begin()) submit_sync();
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
    flushes_.take(incoming_syncs_);
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
  turns_.renew();
  while (const auto direction = turns_.next(queue_)) issue(queue_.take(*direction));
  ring_->flush();
}

void Engine::issue(const Queue::Cut& cut) {
  const Transfer& transfer = queue_[cut.job].transfer;
  const SlotId id = free_slots_.back();
  Piece& piece = slots_[id];
  piece = {cut.job,  transfer.direction, transfer.area, transfer.memory + cut.begin, transfer.offset + cut.begin,
           cut.bytes};
  if (piece.area == Area::data && piece.direction == Direction::write) {
    ledger_.forget(piece.offset);
    if (options_.checksums) piece.checksum = checksum({piece.memory, piece.bytes}, piece.offset);
  } else if (piece.area == Area::data && ledger_.at(piece.offset).bytes != piece.bytes) {
    queue_.fail(cut.job, never_written(place_of(piece), ledger_.at(piece.offset).bytes));
    turns_.end(piece.direction);
    return end_piece(cut.job);
  }
  free_slots_.pop_back();
  meter_.begin(piece.direction);
  submit(id);
  if (piece.direction == Direction::write) ring_->flush();  // it runs while the next one's checksum is computed
}

void Engine::submit(SlotId id) {
  const Piece& piece = slots_[id];
  ring_->submit({operation_of(piece.direction), piece.memory + piece.moved, piece.bytes - piece.moved,
                 volume_.in_file(piece.area, piece.offset + piece.moved), id});
}

void Engine::submit_sync() {
  ring_->submit({sys::Operation::sync, nullptr, 0, 0, kSyncTag});
}

/// Before the thread waits it sets the flags by which `start` and `sync` know that they must wake it.
Engine::Next Engine::decide() {
  const MutexLock lock(mutex_);
  if (!incoming_.empty() || !incoming_syncs_.empty() || registration_ != nullptr) return Next::work;
  if (flushes_.waiting()) return Next::work;
  if (stopping_ && turns_.in_flight() == 0 && !flushes_.in_flight()) return Next::leave;
  wants_wake_ = !turns_.full();
  wants_sync_wake_ = !flushes_.in_flight();
  return Next::wait;
}

void Engine::reap() {
  const std::size_t count = ring_->wait(completions_);
  for (const sys::Completion& completion : std::span(completions_).first(count)) {
    if (completion.tag != kSyncTag) {
      judge(static_cast<SlotId>(completion.tag), completion.result);
    } else if (flushes_.judge(completion.result)) {
      submit_sync();
    }
  }
}

void Engine::judge(SlotId id, std::int32_t result) {
  Piece& piece = slots_[id];
  switch (storage::judge(piece, result)) {
    case Verdict::again:
      return submit(id);
    case Verdict::whole:
      return finish(id, nullptr);
    case Verdict::failed:
      return finish(id, system_failure(place_of(piece), -result));
    case Verdict::stalled:
      return finish(id, stalled(place_of(piece), piece.moved));
  }
}

void Engine::finish(SlotId id, std::exception_ptr error) {
  const Piece& piece = slots_[id];
  turns_.end(piece.direction);
  meter_.end(piece.direction, error ? 0 : piece.bytes);
  if (error) queue_.fail(piece.job, std::move(error));
  finished_.push_back(id);
}

void Engine::settle() {
  for (const SlotId id : finished_) {
    const Piece& piece = slots_[id];
    const bool failed = queue_[piece.job].error != nullptr;
    if (!failed && piece.area == Area::data) settle_data(piece);
    free_slots_.push_back(id);
    end_piece(piece.job);
  }
  finished_.clear();
  count_ended(flushes_.settle());
}

void Engine::settle_data(const Piece& piece) {
  if (piece.direction == Direction::write) return ledger_.record(piece.offset, {piece.checksum, piece.bytes});
  const std::uint64_t expected = ledger_.at(piece.offset).checksum;
  if (!options_.checksums || expected == 0) return;
  if (checksum({piece.memory, piece.bytes}, piece.offset) != expected) queue_.fail(piece.job, corrupt(place_of(piece)));
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

void Engine::count_ended(std::uint64_t count) {
  if (count == 0) return;
  const MutexLock lock(mutex_);
  outstanding_ -= count;
  if (outstanding_ == 0) idle_.notify_all();
}

/// The ring itself has failed, or memory has run out: everything that is pending, and everything that still comes, ends
/// with that error. This function allocates nothing.
void Engine::fail_all_pending(const std::exception_ptr& cause) {
  MutexLock lock(mutex_);
  broken_ = true;
  wants_wake_ = false;
  wants_sync_wake_ = false;
  while (true) {
    std::vector<FlushRequest> syncs = std::exchange(incoming_syncs_, {});
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
    count_ended(flushes_.fail(cause) + end_requests(syncs, cause));
    lock.lock();
    taken_.swap(incoming_);
    while (taken_.empty() && incoming_.empty() && incoming_syncs_.empty()) {
      if (stopping_) return;
      failed_wake_.wait(lock);
    }
  }
}

Subject Engine::place_of(const Piece& piece) {
  return {volume_.path(), queue_[piece.job].transfer.what, piece.direction, volume_.in_file(piece.area, piece.offset),
          piece.bytes};
}

}  // namespace spillway::storage
