// The thread of a path: takes transfers from any thread, keeps the ring full with the most urgent pieces, judges every
// completion, ends transfers.
#pragma once

#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/storage/failure.h"
#include "spillway/storage/flushes.h"
#include "spillway/storage/ledger.h"
#include "spillway/storage/meter.h"
#include "spillway/storage/path.h"
#include "spillway/storage/piece.h"
#include "spillway/storage/queue.h"
#include "spillway/storage/share.h"
#include "spillway/storage/turns.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/ring.h"

namespace spillway::storage {

struct EngineOptions {
  std::string name = "0";     ///< of the path; names the thread
  unsigned queue_depth = 16;  ///< pieces in flight, > 0
  bool checksums = true;
};

class Engine {
 public:
  /// Makes the ring on the new thread and throws what that throws. `volume` outlives the engine. `share` is this
  /// process's share of the device, where other processes use it too; without one the engine takes what it can get.
  Engine(const Volume& volume, EngineOptions options, const sys::RingFactory& ring,
         std::unique_ptr<Share> share = nullptr);
  /// Ends every transfer first.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Does what sys::Ring::register_memory does; may be called on any thread but the engine's.
  std::string register_memory(std::span<std::byte> memory);
  /// The transfer is well formed and lies in the volume.
  void start(const Transfer& transfer);
  void sync(Done done, void* context, std::uint64_t token);
  void drain();
  /// These two are Path's; the offset lies in the volume.
  [[nodiscard]] PieceMark mark(Bytes offset) const { return ledger_.at(offset); }
  void expect(Bytes offset, const PieceMark& mark) { ledger_.record(offset, mark); }
  [[nodiscard]] Counters counters() const { return meter_.counters(); }
  [[nodiscard]] std::string ring_name() const { return ring_name_; }
  /// Whether the caller is the engine's own thread.
  [[nodiscard]] bool on_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  using SlotId = std::uint32_t;
  enum class Next { work, wait, leave };

  void serve(const sys::RingFactory& factory, std::promise<void>& ready);
  void work();
  void take_orders();
  void issue();
  void issue(const Queue::Cut& cut);
  void submit(SlotId id);
  void submit_sync();
  Next decide();
  void reap();
  void judge(SlotId id, std::int32_t result);
  void finish(SlotId id, std::exception_ptr error);
  void settle();
  void settle_data(const Piece& piece);
  void end_piece(Queue::Id id);
  void end(Queue::Id id);
  void count_ended(std::uint64_t count = 1);
  void fail_all_pending(const std::exception_ptr& cause);
  [[nodiscard]] Subject place_of(const Piece& piece);

  const Volume& volume_;
  const EngineOptions options_;
  Meter meter_;
  std::string ring_name_;

  // What follows belongs to the engine's thread alone, once it runs.
  std::unique_ptr<sys::Ring> ring_;
  Ledger ledger_;
  Queue queue_;
  std::vector<Piece> slots_;
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> finished_;  ///< reaped whole, not yet settled
  std::vector<sys::Completion> completions_;
  std::vector<Transfer> taken_;
  std::size_t added_ = 0;  ///< of them, those that are in the queue
  Flushes flushes_;
  Turns turns_;

  Mutex mutex_;
  Condition idle_;  ///< `outstanding_` reached 0
  std::vector<Transfer> incoming_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<FlushRequest> incoming_syncs_ SPILLWAY_GUARDED_BY(mutex_);
  /// Transfers and syncs started whose Done has not returned.
  std::uint64_t outstanding_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::promise<std::string>* registration_ SPILLWAY_GUARDED_BY(mutex_) = nullptr;
  std::span<std::byte> to_register_ SPILLWAY_GUARDED_BY(mutex_);
  /// The answer of a path that has failed, made beforehand: memory may have run out by then.
  std::string unregistered_ SPILLWAY_GUARDED_BY(mutex_) = "the path has failed";
  bool wants_wake_ SPILLWAY_GUARDED_BY(mutex_) = false;       ///< the thread waits and could begin another piece
  bool wants_sync_wake_ SPILLWAY_GUARDED_BY(mutex_) = false;  ///< the thread waits and could begin a flush
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
  bool broken_ SPILLWAY_GUARDED_BY(mutex_) = false;  ///< the ring failed; every transfer fails
  Condition failed_wake_;                            ///< wakes the thread once the ring has failed

  std::thread thread_;  ///< last: sees everything above made
};

}  // namespace spillway::storage
