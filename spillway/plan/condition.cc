#include "spillway/plan/condition.h"

#include "spillway/plan/schedule.h"

namespace spillway::plan {
namespace {

/// True if a task brings weights for a pass that an update needs as well.
bool feeds_update(const Schedule& schedule, const Task& task) {
  if (task.op != Op::transfer || !traits(task.lane).fetches || !traits(task.what.kind).other_part) return false;
  if (is_link(task.lane)) return schedule.updated_there(task.what.index) && !task.when.from_others;
  return schedule.update_task[task.what.index] != kNone;
}

/// True if the task has nothing to do once the early update of the previous instance is kept.
bool follows_early_update(const Schedule& schedule, const Task& task) {
  const bool gradient = is_read(task.lane) && traits(task.what.kind).of_gradient;
  const bool updates = task.op == Op::update || gradient;
  return task.when.phase == Phase::update && updates && schedule.early[task.what.index].task != kNone;
}

/// The builder of a task says `changed_weights` of whatever brings to a device what stays there.
OnlyIf only_if(const Schedule& schedule, const Task& task) {
  if (traits(task.what.kind).of_refit) {
    return traits(task.lane).server == Server::network ? OnlyIf::due_refit : OnlyIf::left_refit;
  }
  if (task.when.only == OnlyIf::changed_weights && !task.when.from_others) {
    const auto c = task.what.index;
    const bool host_updates =
        schedule.update_task[c] != kNone && !schedule.updated_there(c) && !schedule.takes_change(c);
    return host_updates ? OnlyIf::changed_weights : OnlyIf::stored_weights;
  }
  if (follows_early_update(schedule, task)) return OnlyIf::no_early_update;
  return task.when.only;
}

}  // namespace

bool Condition::may_run(const StepFacts& step) const noexcept {
  if (waits() && step.catches_up) return true;
  switch (phase) {
    case Phase::update:
      return step.update && has_turn(step.updates);
    case Phase::forward:
      return step.passes || (step.update && feeds_update);
    case Phase::head_loss:
      return step.passes;
    case Phase::backward:
    case Phase::ahead:
      return step.backward && !(step.trial && stores_gradient);
    case Phase::early:
      return step.early;
  }
  return true;
}

void complete_conditions(Schedule& schedule) {
  for (auto& task : schedule.tasks) {
    auto& when = task.when;
    when.only = only_if(schedule, task);
    when.feeds_update = feeds_update(schedule, task);
    when.stores_gradient = is_path(task.lane) && !is_read(task.lane) && traits(task.what.kind).of_gradient;
    when.is_free = when.only == OnlyIf::stored_weights || when.only == OnlyIf::no_early_update || follows_refit(task);
  }
}

}  // namespace spillway::plan
