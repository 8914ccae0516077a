// The schedule on the machine: lanes that run its tasks, and the caller who computes.
//
// The caller is the compute lane: begin() starts an instance, next() waits for a pass's bytes, done() lets its
// followers go. A pass on a device with memory of its own follows its copies in the device's order: the caller waits
// until they are issued, and the compute stream until they have ended. Reads and writes go to the paths' own threads,
// updates to the lane of the NUMA node that they work on, whose threads the caller helps while it waits. No lock is
// held while anything runs. The first error of any lane is kept and thrown by the next wait.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "spillway/execute/asked_chunks.h"
#include "spillway/execute/copies.h"
#include "spillway/execute/lateness.h"
#include "spillway/execute/network_lane.h"
#include "spillway/execute/pass_clock.h"
#include "spillway/execute/pass_waits.h"
#include "spillway/execute/store.h"
#include "spillway/execute/update_lanes.h"
#include "spillway/execute/update_work.h"
#include "spillway/execute/waits.h"
#include "spillway/execute/weight_slots.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// Which phases an instance runs, and of what its transfers are.
struct Mode {
  bool update = false;  ///< updates are pending
  bool passes = true;   ///< forward and head_loss
  bool backward = true;
  bool early = false;         ///< chunks with room for their old version are updated during backward
  bool kept = false;          ///< of the pending updates, those that were done early are not done again
  bool trial = false;         ///< gradients are written to no path
  bool stored = false;        ///< weights were stored since the instance before, beside updates
  std::uint64_t updated = 0;  ///< the step whose updates are pending: version of weights and states
  std::uint64_t updates = 0;  ///< count of updates, these included
  std::uint64_t step = 0;     ///< this step: version of gradients
  /// Bytes of the step's packed rows (Description::packed_rows_bytes); a task moves no more than its own.
  Bytes packed_rows = std::numeric_limits<Bytes>::max();
};

/// Device that passes compute on, if its memory is not the host's.
struct ComputeDevice {
  device::Device* device = nullptr;  ///< with its arena; null: the host
  device::Stream stream = 0;         ///< of the caller's work
  DeviceUpdates* updates = nullptr;  ///< matters with a device
};

/// Transport between this process and others, if there are any.
struct OtherProcesses {
  network::Port* port = nullptr;
  NetworkWork* work = nullptr;
};

/// Tasks of one instance of the schedule, and how far each is.
struct InstanceBank {
  std::uint64_t instance = 0;
  bool open = false;  ///< has tasks that have not ended
  Mode mode;
  std::size_t left = 0;  ///< tasks that have not ended
  std::vector<std::uint32_t> waiting;
  std::vector<std::uint8_t> ended;
  std::vector<std::uint8_t> issued;  ///< a copy or update that a pass of the device needs is in its stream
  std::vector<std::uint8_t> kept;    ///< by chunk: its pending update was done early
  AskedChunks asked;
  plan::StepFacts facts;  ///< that conditions of tasks ask
  std::vector<Times> times;
};

class Executor final : private UpdateLanes::Client {
 public:
  /// `store` may be null when no task is a transfer. `slots`: of weights; null: each chunk lies in its own. All
  /// references must outlive the executor.
  Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores = {},
           ComputeDevice device = {}, OtherProcesses others = {}, const WeightSlots* slots = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Starts an instance; the one before must have had all its passes. Waits until the one before that has ended.
  void begin(Mode mode);
  /// The next pass that this instance runs. Its bytes are there; on a device with memory of its own they are there for
  /// work that is given to the stream. Null after the last pass, when all copies that passes need have ended. Throws a
  /// lane's error.
  const plan::Pass* next();
  /// Ends the pass that next() returned; on a device with memory of its own: all its work has been given to the
  /// stream.
  void done();
  /// The pass that next() returned needs weights of these chunks; ask() begins to bring what it asks for (Pass::asks),
  /// and await() waits for it, too: on a device with memory of its own until its copies have ended. A backward pass may
  /// await what the layer's forward pass has asked for, else this throws Error(bad_input). Any thread, one at a time.
  void ask(plan::Range chunks);
  void await(plan::Range chunks);
  /// After the last pass: waits for the early update under way; those that have not begun are left to the next
  /// instance. Returns the chunks that were updated early, until the next begin(). Throws a lane's error.
  const std::vector<plan::Index>& end_early();
  /// After the last pass: waits until every transfer between processes has ended. Throws a lane's error.
  void end_network();
  /// Waits until every task of every instance has ended. Throws a lane's error.
  void drain();

  /// Waits of passes up to the last settle_waits(): the caller in next(), or a device that was idle.
  [[nodiscard]] const Waits& waits() const noexcept { return waits_.waits(); }
  /// Adds the waits of the newest instance, once the device has run all of its passes.
  void settle_waits();
  /// Work of the update lanes, by unit of the schedule's update tasks.
  [[nodiscard]] std::vector<Updated> updated() const;
  /// Times of the tasks of the newest training step that has wholly ended; evaluations and flushes do not count.
  [[nodiscard]] std::vector<Times> last_times() const;
  /// Seconds and number of passes on a device with its own memory, by kind of pass. Empty without such a device.
  [[nodiscard]] std::vector<PassClock::Total> device_passes() const;
  /// Task that each lane of copies and of updates on a device waits for. Empty without a device with its own memory.
  /// Any thread.
  [[nodiscard]] std::map<plan::Lane, CopyLane::Front> device_fronts() const {
    return copies_ ? copies_->fronts() : std::map<plan::Lane, CopyLane::Front>();
  }
  [[nodiscard]] double now() const { return clock_.now(); }
  /// Empty where nobody waits for this process, as far as it knows. Any thread.
  [[nodiscard]] std::optional<Lateness> late() const;

 private:
  using Index = plan::Index;

  /// Weights on the host that the device has older copies of, by what has changed them.
  struct Changed {
    bool updated = true, stored = true;
  };

  [[nodiscard]] bool runs(const InstanceBank& bank, const plan::Task& task) const;
  template <class Filter>
  void release_held(const Filter& filter, std::vector<Start>& transfers);  // locked
  void open_bank(InstanceBank& bank, Mode mode);                           // locked
  void drop_early(std::vector<Start>& transfers);                          // locked
  InstanceBank& bank(std::uint64_t instance) { return banks_[instance % banks_.size()]; }
  void end_task(Start start, std::vector<Start>& transfers);  // locked
  template <class Body>
  void each_follower(const Start& start, const Body& body);                                         // locked
  [[nodiscard]] bool follows_issue(const Start& follower, const Start& start);                      // locked
  void release(const Start& follower, std::vector<Start>& transfers, std::vector<Start>& skipped);  // locked
  void make_ready(Start start, std::vector<Start>& transfers, std::vector<Start>& skipped);         // locked
  void launch(std::vector<Start>& transfers);                                                       // unlocked
  void launch_transfer(const Start& start, const plan::Task& task);
  void fail(std::exception_ptr error);  // locked
  void throw_failure();                 // locked
  static void transfer_issued(void* context, std::uint64_t token) noexcept;
  static void transfer_done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;
  template <class Done>
  void help_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, const Done& is_done);
  void network_ended(const Start& start, const std::exception_ptr& error) noexcept;
  [[nodiscard]] bool stalled() const;  // locked
  void update_begins(const Start& start, double now) override;
  void update_ended(const Start& start, double now, std::size_t lane, std::unique_lock<std::mutex>& lock) override;
  void tiles_begin() override;
  void await_needs(std::unique_lock<std::mutex>& lock, Index pass);
  void settle_waits(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Start start_of(std::uint64_t token) const noexcept;

  const plan::Schedule& schedule_;
  std::byte* const arena_;
  Store* const store_;
  UpdateWork& work_;
  const WeightSlots* const slots_;
  const Clock clock_;
  std::vector<std::vector<Index>> same_, next_;  ///< followers within an instance and in the next

  mutable std::mutex mutex_;
  std::condition_variable compute_wake_, idle_;
  std::unique_ptr<Copies> copies_;         ///< null: no device with memory of its own
  std::unique_ptr<PassClock> pass_clock_;  ///< null: likewise
  std::unique_ptr<NetworkLane> network_;   ///< null: there are no other processes
  Changed changed_;                        ///< when the newest instance has ended
  std::array<InstanceBank, 2> banks_;
  std::uint64_t instances_ = 0;  ///< begun so far
  std::vector<Index> held_;      ///< of what the pass may ask for, what it has not asked for
  std::size_t pass_ = 0;         ///< next index into schedule_.passes of the newest instance
  std::vector<std::uint8_t> pass_ready_;
  std::vector<Index> early_;  ///< chunks updated early in the newest instance
  std::vector<Start> skipped_;
  std::vector<Start> caller_transfers_;             ///< each calling thread has its own
  std::vector<std::vector<Start>> lane_transfers_;  ///< by update lane
  std::size_t in_flight_ = 0;                       ///< transfers handed to the path
  std::size_t feeding_ = 0;                         ///< issued copies and updates that a pass needs; have not ended
  std::exception_ptr failure_;
  std::vector<Times> last_times_;
  std::uint64_t last_instance_ = 0;  ///< of `last_times_`
  PassWaits waits_;
  std::unique_ptr<UpdateLanes> updates_;
};

template <class Body>
void Executor::each_follower(const Start& start, const Body& body) {
  for (const auto follower : same_[start.task]) body(Start{start.instance, follower});
  if (start.instance + 1 >= instances_) return;
  for (const auto follower : next_[start.task]) body(Start{start.instance + 1, follower});
}

template <class Done>
void Executor::help_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, const Done& is_done) {
  updates_->caller_waits(true);
  for (int looks = 0; !failure_ && !is_done();) {
    const bool idle = !updates_->help(lock) && wake.wait_for(lock, kStallCheck) == std::cv_status::timeout;
    looks = idle && !failure_ && !is_done() && stalled() ? looks + 1 : 0;
    if (looks < kStalledLooks) continue;
    lock.unlock();
    store_->refuse_waiting();  // transfer_done() takes the lock
    lock.lock();
  }
  updates_->caller_waits(false);
}

}  // namespace spillway::execute
