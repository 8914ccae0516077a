// The thread of a path: takes transfers from any thread, keeps the ring full with the most urgent pieces, judges every
// completion, ends transfers.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/storage/failure.h"
#include "spillway/storage/ledger.h"
#include "spillway/storage/meter.h"
#include "spillway/storage/path.h"
#include "spillway/storage/queue.h"
#include "spillway/storage/share.h"
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
  /// A piece in flight, or reaped and waiting for its checksum.
  struct Slot {
    Queue::Id job = 0;
    Direction direction = Direction::read;
    Area area = Area::data;
    std::byte* memory = nullptr;
    Bytes offset = 0;  ///< of the piece, in its area
    std::uint32_t bytes = 0;
    std::uint32_t moved = 0;
    std::uint32_t fruitless = 0;  ///< attempts in a row that moved nothing
    std::uint64_t checksum = 0;   ///< of a write
  };
  using SlotId = std::uint32_t;
  /// One who waits for a flush.
  struct Request {
    Done done;
    void* context;
    std::uint64_t token;
  };
  /// The flushes of the volume: at most one at a time, for all who had asked when it began.
  struct Sync {
    std::vector<Request> waiting;
    std::vector<Request> served;  ///< by the flush under way, or just ended
    bool in_flight = false;
    std::optional<std::int32_t> result;  ///< of the flush that has ended, until it is settled
    std::uint32_t fruitless = 0;
    std::exception_ptr failure;  ///< of the first flush that failed
  };
  enum class Next { work, wait, leave };

  /// Pieces in flight.
  [[nodiscard]] unsigned in_flight() const noexcept { return in_flight_[0] + in_flight_[1]; }
  [[nodiscard]] unsigned& in_flight(Direction direction) noexcept { return in_flight_[index(direction)]; }

  void serve(const sys::RingFactory& factory, std::promise<void>& ready);
  void work();
  void take_orders();
  void issue();
  void issue(const Queue::Cut& cut);
  [[nodiscard]] std::optional<Direction> choose();
  [[nodiscard]] bool waiting(Direction direction);
  void submit(SlotId id);
  void begin_sync();
  void submit_sync();
  void judge_sync(std::int32_t result);
  void settle_sync();
  Next decide();
  void reap();
  void judge(SlotId id, std::int32_t result);
  void finish(SlotId id, std::exception_ptr error);
  void settle();
  void settle_data(const Slot& slot);
  void end_piece(Queue::Id id);
  void end(Queue::Id id);
  void end(std::vector<Request>& requests, const std::exception_ptr& error);
  void count_ended();
  void fail_all_pending(const std::exception_ptr& cause);
  [[nodiscard]] Subject place_of(const Slot& slot);

  const Volume& volume_;
  const EngineOptions options_;
  Meter meter_;
  std::string ring_name_;

  // What follows belongs to the engine's thread alone, once it runs.
  std::unique_ptr<sys::Ring> ring_;
  Ledger ledger_;
  Queue queue_;
  std::vector<Slot> slots_;
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> finished_;  ///< reaped whole, not yet settled
  std::vector<sys::Completion> completions_;
  std::vector<Transfer> taken_;
  std::size_t added_ = 0;  ///< of them, those that are in the queue
  Sync sync_;
  std::array<unsigned, 2> in_flight_ = {0, 0};  ///< pieces, by direction
  std::unique_ptr<Share> share_;
  std::array<bool, 2> refused_ = {false, false};  ///< by the share, since a piece ended last; by direction

  Mutex mutex_;
  Condition idle_;  ///< `outstanding_` reached 0
  std::vector<Transfer> incoming_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<Request> incoming_syncs_ SPILLWAY_GUARDED_BY(mutex_);
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
