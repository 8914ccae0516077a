// Dependencies between the tasks of two instances of the schedule, the newest and the one before: tasks that may begin
// when another has ended, and tasks that an instance skips. A value without threads and without a clock.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "spillway/execute/asked_chunks.h"
#include "spillway/execute/update_queue.h"
#include "spillway/execute/update_work.h"
#include "spillway/execute/waits.h"
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

/// Tasks that a change has released.
struct Released {
  std::vector<Start> ready;    ///< may begin
  std::vector<Start> skipped;  ///< have ended, since their instance does not run them
  bool awaited = false;        ///< something has ended that a caller may wait for

  void clear() noexcept {
    ready.clear();
    skipped.clear();
    awaited = false;
  }
};

/// True if a pass of the device needs a task that is a copy or an update there. The pass follows it in the device's
/// order.
[[nodiscard]] bool feeds_pass(const plan::Schedule& schedule, plan::Index task, plan::Index pass_task);

/// Threads that share a tracker hold a lock. The mode of an open instance is read without it, and the times of a task
/// belong to the thread that runs the task.
class DependencyTracker {
 public:
  using Index = plan::Index;

  /// `work` knows the refits of chunks, and the updates that wait. Both references must outlive the tracker.
  DependencyTracker(const plan::Schedule& schedule, UpdateWork& work);

  // Instances:

  /// Begins an instance; has_room() is true.
  void begin(const Mode& mode, Released& released);
  /// Instances that have begun.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t newest() const noexcept { return count_ - 1; }
  /// True if every task of the instance before the newest has ended.
  [[nodiscard]] bool has_room() const noexcept { return at(count_).left == 0; }
  [[nodiscard]] bool all_ended() const noexcept { return instances_[0].left == 0 && instances_[1].left == 0; }
  [[nodiscard]] const Mode& mode(std::uint64_t instance) const noexcept { return at(instance).mode; }
  /// Times of the tasks of the newest training step that has wholly ended, and its instance.
  [[nodiscard]] const std::vector<Times>& last_times() const noexcept { return last_times_; }
  [[nodiscard]] std::uint64_t last_instance() const noexcept { return last_instance_; }

  // Tasks:

  /// Ends a task that has run.
  void end(const Start& start, Released& released);
  /// Ends a task that does not run, although it was released.
  void skip(const Start& start, Released& released);
  /// A copy or an update is in its stream. Passes that follow it in the device's order need not wait for its end.
  void issue(const Start& start, Released& released);
  [[nodiscard]] bool is_issued(const Start& start) const { return at(start.instance).issued[start.task] != 0; }
  [[nodiscard]] Times& times(const Start& start) { return at(start.instance).times[start.task]; }
  /// Flags by task, of the newest instance and of the one before.
  [[nodiscard]] std::array<std::span<const std::uint8_t>, 2> ended() const {
    return {at(newest()).ended, at(count_).ended};
  }
  [[nodiscard]] bool have_ended(std::span<const Index> tasks) const;

  // Passes of the newest instance:

  /// Comes to the next pass that the instance runs, and returns its number: that of passes after the last one.
  Index find_pass();
  /// The pass that find_pass() came to.
  [[nodiscard]] Index pass() const noexcept { return pass_; }
  [[nodiscard]] bool is_ready(Index pass) const { return at(newest()).waiting[schedule_.passes[pass].task] == 0; }
  /// Begins the pass: it may ask for chunks until it ends.
  void begin_pass();
  /// Releases the tasks that bring chunks, if the pass may ask for them and has not.
  void ask(plan::Range chunks, Released& released);
  /// Tasks that bring chunks for the pass. A backward pass may have what the layer's forward pass has asked for, else
  /// this throws Error(bad_input).
  [[nodiscard]] std::vector<Index> find_asked(plan::Range chunks) const;
  /// Ends the pass. Tasks that it has not asked for are skipped.
  void end_pass(Released& released);

  // Early updates of the newest instance:

  /// Chunks that were updated early.
  [[nodiscard]] const std::vector<Index>& early() const noexcept { return early_; }
  /// Early updates that are not ready are skipped when they are.
  void end_early() { at(newest()).facts.early = false; }

 private:
  /// Tasks of one instance, and how far each is.
  struct Instance {
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
  /// Weights on the host that the device has older copies of, by what has changed them.
  struct Changed {
    bool updated = true, stored = true;
  };

  [[nodiscard]] Instance& at(std::uint64_t number) noexcept { return instances_[number % instances_.size()]; }
  [[nodiscard]] const Instance& at(std::uint64_t number) const noexcept {
    return instances_[number % instances_.size()];
  }
  void open(Instance& instance, const Mode& mode);
  [[nodiscard]] bool runs(const Instance& instance, const plan::Task& task) const;
  template <class Body>
  void each_follower(const Start& start, const Body& body) const;
  [[nodiscard]] bool follows_issue(const Start& follower, const Start& start) const;
  void release(const Start& start, Released& released);
  template <class Filter>
  void release_held(const Filter& filter, Released& released);
  void end_skipped(Released& released);
  void close(const Start& last, Released& released);

  const plan::Schedule& schedule_;
  UpdateWork& work_;
  std::vector<std::vector<Index>> same_, next_;  ///< followers within an instance and in the next
  std::array<Instance, 2> instances_;
  std::uint64_t count_ = 0;  ///< of instances
  Changed changed_;          ///< when the newest instance has ended
  std::vector<Start> ends_;  ///< tasks that end, a worklist: those that are skipped end at once and release others
  std::vector<Index> held_;  ///< of what the pass may ask for, what it has not asked for
  Index pass_ = 0;           ///< next index into schedule_.passes
  std::vector<Index> early_;
  std::vector<Times> last_times_;
  std::uint64_t last_instance_ = 0;
};

}  // namespace spillway::execute
