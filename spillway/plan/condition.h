// When a task runs: one value of each task, which the executor asks for an instance and the simulator for an average
// step.
#pragma once

#include <cstdint>

#include "spillway/plan/kinds.h"
#include "spillway/plan/placement.h"

namespace spillway::plan {

struct Schedule;

/// Conditions on an instance or on the chunks of a task, beside the phase and the turn.
enum class OnlyIf : std::uint8_t {
  always,
  changed_weights,  ///< an update or a caller has changed host weights that a device keeps a copy of
  stored_weights,   ///< a caller has stored them; no update on the host changes them
  left_refit,       ///< a pass has left a refit of one of the chunks
  due_refit,        ///< a refit of the chunk is due, in whichever process
  no_early_update,  ///< the early update of the chunk was not kept
  asked,            ///< a pass of this instance has asked for the chunk
  asked_before,     ///< a pass of the step whose update is pending had asked for it
  due,              ///< the chunk has updates to do in this instance (Schedule::update_waits)
  due_or_asked,     ///< either
  kept_copies,      ///< no caller has stored weights that a device keeps a copy of
};

/// An instance of a step.
struct StepFacts {
  bool update = false;  ///< updates are pending
  bool passes = true;   ///< forward and head_loss
  bool backward = true;
  bool early = false;       ///< chunks with room for their old version are updated during backward
  bool trial = false;       ///< gradients are written to no path
  bool catches_up = false;  ///< updates that have waited for a pass to ask may run, even if no update is pending
  bool has_changed_weights = true, has_stored_weights = true;  ///< on the host, since the instance before (OnlyIf)
  std::uint64_t updates = 0;                                   ///< count of updates, the pending ones included
};

struct Condition {
  Phase phase = Phase::forward;
  std::uint32_t every = 1, turn = 0;  ///< phase update: it runs when the count of updates modulo `every` is `turn`
  OnlyIf only = OnlyIf::always;
  bool from_others = false;      ///< other processes may have updated what it brings
  bool feeds_update = false;     ///< phase forward: an update needs what it brings, too
  bool stores_gradient = false;  ///< on a path
  double share = 1;              ///< of the average steps that have the task by its phase and turn
  bool is_free = false;          ///< an average step has no time and no bytes for it

  /// True if updates that may wait decide whether it runs.
  [[nodiscard]] bool waits() const noexcept { return only == OnlyIf::due || only == OnlyIf::due_or_asked; }

  /// True if the instance has the task, whatever is known of its chunks.
  [[nodiscard]] bool may_run(const StepFacts& step) const noexcept;

  /// True if the task of the chunks [first, end) runs in the instance. `facts` answers for a chunk has_refit(c),
  /// is_refit_due(c), keeps_early_update(c), is_asked(c), was_asked(c) and is_due(c).
  template <class ChunkFacts>
  [[nodiscard]] bool runs(const StepFacts& step, const ChunkFacts& facts, Index first, Index end) const {
    if (!may_run(step)) return false;
    switch (only) {
      case OnlyIf::always:
        break;
      case OnlyIf::changed_weights:
        return !step.passes || step.has_changed_weights;
      case OnlyIf::stored_weights:
        return !step.passes || step.has_stored_weights;
      case OnlyIf::left_refit:
        for (auto c = first; c < end; ++c) {
          if (facts.has_refit(c)) return true;
        }
        return false;
      case OnlyIf::due_refit:
        return facts.is_refit_due(first);
      case OnlyIf::no_early_update:
        return !facts.keeps_early_update(first);
      case OnlyIf::asked:
        return facts.is_asked(first);
      case OnlyIf::asked_before:
        return facts.was_asked(first);
      case OnlyIf::due:
        return facts.is_due(first);
      case OnlyIf::due_or_asked:
        return facts.is_due(first) || facts.is_asked(first);
      case OnlyIf::kept_copies:
        return !step.has_stored_weights;
    }
    return true;
  }

  /// True if the average step of this number has the task.
  [[nodiscard]] bool has_turn(std::uint64_t step) const noexcept { return step % every == turn; }
};

/// Completes the conditions of a schedule that has all of its tasks.
void complete_conditions(Schedule& schedule);

}  // namespace spillway::plan
