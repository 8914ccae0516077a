// The schedule on the machine, as its caller sees it: the caller computes the passes, and the lanes run all other
// tasks.
//
// The caller is the compute lane: begin() starts an instance, next() waits for a pass's bytes, done() lets its
// followers go. A pass on a device with memory of its own follows its copies in the device's order: the caller waits
// until they are issued, and the compute stream until they have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "spillway/execute/clock.h"
#include "spillway/execute/copies.h"
#include "spillway/execute/dependency_tracker.h"
#include "spillway/execute/dispatcher.h"
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

class Executor final {
 public:
  /// `store` may be null when no task is a transfer. `slots`: of weights; null: each chunk lies in its own. All
  /// references must outlive the executor.
  Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores = {},
           ComputeDevice device = {}, OtherProcesses others = {}, const WeightSlots* slots = nullptr);
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
    const auto* const copies = dispatcher_.transfers().copies();
    return copies != nullptr ? copies->fronts() : std::map<plan::Lane, CopyLane::Front>();
  }
  [[nodiscard]] double now() const { return clock_.now(); }
  /// Empty where nobody waits for this process, as far as it knows. Any thread.
  [[nodiscard]] std::optional<Lateness> late() const { return dispatcher_.late(); }

 private:
  using Index = plan::Index;
  using Lock = Dispatcher::Lock;

  [[nodiscard]] Times& times(std::uint64_t instance, Index task) { return dispatcher_.tasks().times({instance, task}); }
  void await_needs(Index pass, Lock& lock);
  void settle_waits(Lock& lock);

  const plan::Schedule& schedule_;
  const Clock clock_;
  Dispatcher dispatcher_;
  std::unique_ptr<PassClock> pass_clock_;  ///< null: no device with memory of its own
  PassWaits waits_;
};

}  // namespace spillway::execute
