// The dispatcher of the schedule's tasks: each goes to its lane when what it needs has ended, and its end releases
// others. Reads and writes go to the paths' own threads, updates to the lane of the NUMA node that they work on, whose
// threads the caller helps while it waits. The dispatcher keeps the first error of any lane, and the next wait throws
// it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "spillway/execute/clock.h"
#include "spillway/execute/dependency_tracker.h"
#include "spillway/execute/lateness.h"
#include "spillway/execute/network_lane.h"
#include "spillway/execute/transfers.h"
#include "spillway/execute/update_lanes.h"
#include "spillway/execute/update_work.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// One lock guards the tracker and what the lanes share. No lock is held while a task runs or a transfer starts.
class Dispatcher final : private UpdateLanes::Client, private Transfers::Client {
 public:
  using Lock = std::unique_lock<std::mutex>;
  /// A change of the tracker, made with the lock held.
  using Change = std::function<void(DependencyTracker& tracker, Released& released)>;

  /// Starts the threads of updates. All references must outlive the object.
  Dispatcher(const plan::Schedule& schedule, const Transfers::Ends& ends, UpdateWork& work, UpdateCores cores,
             const OtherProcesses& others, const Clock& clock);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  [[nodiscard]] Lock lock() const { return Lock(mutex_); }

  // Calls without the lock, any thread:

  [[nodiscard]] Transfers& transfers() noexcept { return transfers_; }
  [[nodiscard]] const Transfers& transfers() const noexcept { return transfers_; }
  /// Empty where nobody waits for this process, as far as it knows.
  [[nodiscard]] std::optional<Lateness> late() const;

  // Calls with the lock held. Those with a `lock` let go of it meanwhile, and return with it held:

  /// The caller reads newest() and pass() without the lock, too: they change in calls of the caller alone.
  [[nodiscard]] DependencyTracker& tasks() noexcept { return tracker_; }
  [[nodiscard]] const DependencyTracker& tasks() const noexcept { return tracker_; }
  [[nodiscard]] UpdateLanes& updates() noexcept { return *updates_; }
  [[nodiscard]] const UpdateLanes& updates() const noexcept { return *updates_; }
  /// Begins an instance; the tracker has room for it. The caller's.
  void begin(const Mode& mode, Lock& lock);
  /// Makes a change, and gives the tasks that it releases to their lanes. The caller's, at the end of a pass or later.
  void change(const Change& change, Lock& lock) { dispatch(change, caller_transfers_, lock); }
  /// Begins to bring what the caller's pass asks for. Any thread, one at a time.
  void ask(plan::Range chunks, Lock& lock);
  /// Waits until this is true, and helps with updates meanwhile. Throws a lane's error. One thread at a time.
  void wait_until(const std::function<bool()>& is_done, Lock& lock);
  /// Runs what may take long without the lock, as a wait of the caller's.
  void run_while_waiting(const std::function<void()>& body, Lock& lock);
  /// Waits until every transfer of the newest instance between processes has ended. Throws a lane's error.
  void end_network(Lock& lock);
  void throw_failure() const;

 private:
  void dispatch(const Change& change, std::vector<Start>& transfers, Lock& lock);
  void hand_out(std::vector<Start>& transfers);                      // locked
  void hand_out(const Start& start, std::vector<Start>& transfers);  // locked
  void end(const Start& start, const std::exception_ptr& error, std::vector<Start>& transfers, Lock& lock) noexcept;
  void fail(std::exception_ptr error);    // locked
  [[nodiscard]] bool is_stalled() const;  // locked
  void network_ended(const Start& start, const std::exception_ptr& error) noexcept;
  void update_begins(const Start& start, double now) override;
  void update_ended(const Start& start, double now, std::size_t lane, Lock& lock) override;
  void tiles_begin() override { wake_.notify_all(); }
  void transfer_issued(const Start& start) override;
  void issued_ended() override { wake_.notify_all(); }
  void transfer_ended(const Start& start, const std::exception_ptr& error, Lock& lock) noexcept override;

  const plan::Schedule& schedule_;
  const Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  ///< of the thread in wait_until()
  DependencyTracker tracker_;
  Released released_;                               ///< by the change under way
  std::vector<Start> caller_transfers_;             ///< each calling thread has its own
  std::vector<std::vector<Start>> lane_transfers_;  ///< by update lane
  std::exception_ptr failure_;
  Transfers transfers_;
  std::unique_ptr<NetworkLane> network_;  ///< null: there are no other processes
  std::unique_ptr<UpdateLanes> updates_;
};

}  // namespace spillway::execute
