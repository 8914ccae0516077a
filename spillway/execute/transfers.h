// Transfers of the schedule while they are in flight: reads and writes of storage paths, copies and updates of a
// device. They are handed to the path or the device when they are ready, and their ends come back here.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>

#include "spillway/execute/copies.h"
#include "spillway/execute/dependency_tracker.h"
#include "spillway/execute/store.h"
#include "spillway/execute/weight_slots.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class Transfers {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Who makes tasks ready. Every call comes with the lock held, from threads of the paths and of the device.
  class Client {
   public:
    /// A copy or update that a pass needs is in its stream on the device. The client tells the tracker.
    virtual void transfer_issued(const Start& start) = 0;
    /// Every such copy and update has ended.
    virtual void issued_ended() = 0;
    /// Once for each transfer, with the error that it failed with, or null. Comes from within start(), too, with an
    /// error. May let go of the lock, and returns with it held.
    virtual void transfer_ended(const Start& start, const std::exception_ptr& error, Lock& lock) noexcept = 0;

   protected:
    ~Client() = default;
  };

  /// Places that transfers move bytes between. `store` may be null when no task is a transfer with a path. `slots`: of
  /// weights; null: each chunk lies in its own.
  struct Ends {
    std::byte* arena = nullptr;
    Store* store = nullptr;
    const WeightSlots* slots = nullptr;
    ComputeDevice device = {};
  };

  /// `mutex`: the client's lock. All references must outlive the object.
  Transfers(const plan::Schedule& schedule, const Ends& ends, DependencyTracker& tracker, std::mutex& mutex,
            Client& client);
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Calls without the lock:

  /// Tells the store which gradients and snapshots an instance is going to write.
  void announce(const Mode& mode);
  /// Hands ready transfers to their paths and to the device.
  void start(std::span<const Start> starts);
  /// Ends the wait of transfers for a place on the paths with an error.
  void refuse_waiting() { ends_.store->refuse_waiting(); }
  /// Waits until nothing is in flight.
  void stop();
  /// Null: no device with memory of its own.
  [[nodiscard]] Copies* copies() const noexcept { return copies_.get(); }

  // Calls with the lock held:

  /// True if a copy or update that a pass needs is in its stream and has not ended.
  [[nodiscard]] bool is_feeding() const noexcept { return feeding_ > 0; }
  /// True if transfers are in flight, and each is a write that waits for a place which only other work gives back.
  [[nodiscard]] bool are_stalled() const;
  /// The run has failed: transfers that have not begun end with this error.
  void give_up(const std::exception_ptr& error);

 private:
  void hand_out(const Start& start);
  void end(const Start& start, const std::exception_ptr& error) noexcept;
  [[nodiscard]] Start start_of(std::uint64_t token) const noexcept;
  static void on_issued(void* context, std::uint64_t token) noexcept;
  static void on_end(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;

  const plan::Schedule& schedule_;
  const Ends ends_;
  DependencyTracker& tracker_;
  std::mutex& mutex_;
  Client& client_;
  std::condition_variable idle_;
  std::size_t in_flight_ = 0;
  std::size_t feeding_ = 0;  ///< issued copies and updates that a pass needs; have not ended
  std::unique_ptr<Copies> copies_;
};

}  // namespace spillway::execute
