#include "spillway/execute/waits.h"

#include <algorithm>
#include <vector>

namespace spillway::execute {

using plan::Index;
using plan::Lane;

namespace {

struct Reached {
  Index task = plan::kNone;
  bool previous = false;
  Times times;
};

/// The need of `task` that ended last, looking through tasks that were skipped, which end with their own needs. Of what
/// a pass asks for, those count that had begun at the time `until`.
Reached last_need(const plan::Schedule& schedule, const Reached& step, double until, const Waits::Look& look) {
  Reached last;
  const auto& task = schedule.tasks[step.task];
  if (task.op == plan::Op::compute && task.what.index < schedule.passes.size()) {
    for (const auto t : schedule.passes[task.what.index].asks) {
      const auto* times = look(t, step.previous);
      const bool counts = times != nullptr && times->end > last.times.end && times->start < until;
      if (counts) last = {t, step.previous, *times};
    }
  }
  std::vector<Reached> open{step};
  for (std::size_t looked = 0; !open.empty() && looked < schedule.tasks.size(); ++looked) {
    const auto it = open.back();
    open.pop_back();
    for (const auto& need : schedule.tasks[it.task].needs) {
      if (need.previous && it.previous) continue;  // two instances ago: it ended long before
      const bool previous = need.previous || it.previous;
      const auto* times = look(need.task, previous);
      if (times == nullptr) continue;
      if (times->end == 0) {
        open.push_back({need.task, previous, {}});
      } else if (last.task == plan::kNone || times->end > last.times.end) {
        last = {need.task, previous, *times};
      }
    }
  }
  return last;
}

Cause cause_of(const plan::Task& task, const Times& times) {
  return {task.lane, is_path(task.lane) ? times.path : task.unit};
}

}  // namespace

void Waits::add(const plan::Schedule& schedule, Index pass, double begin, double end, const Look& look) {
  Reached at{pass, false, {}};
  Cause cause;  // of what `at` itself waits for once its needs are there: its lane
  auto until = end;
  while (until > begin) {
    const auto need = last_need(schedule, at, until, look);
    const bool waits_here = at.task != pass;
    if (need.task == plan::kNone || schedule.tasks[need.task].lane == Lane::compute || need.times.end <= begin) {
      seconds_[cause] += until - begin;
      return;
    }
    const auto next = cause_of(schedule.tasks[need.task], need.times);
    const auto ended = std::clamp(need.times.end, begin, until);
    seconds_[waits_here ? cause : next] += until - ended;
    const auto from = std::clamp(need.times.start, begin, ended);
    seconds_[next] += ended - from;
    until = from;
    at = need;
    cause = next;
  }
}

std::map<std::string, double> Waits::list_by_lane() const {
  std::map<std::string, double> out{{"read", 0}, {"update", 0}, {"write", 0}};
  for (const auto& [cause, seconds] : seconds_) out[plan::name_of(cause.lane)] += seconds;
  return out;
}

double Waits::sum() const {
  double out = 0;
  for (const auto& [cause, seconds] : seconds_) out += seconds;
  return out;
}

}  // namespace spillway::execute
