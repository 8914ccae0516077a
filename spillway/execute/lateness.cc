#include "spillway/execute/lateness.h"

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::Index;

namespace {

struct At {
  Index task = plan::kNone;
  bool before = false;  ///< of the instance before
};

/// First unfinished task that a task needs; kNone: nothing.
At open_need(const plan::Schedule& schedule, const Ended& ended, const At& at) {
  for (const auto& need : schedule.tasks[at.task].needs) {
    if (need.previous && at.before) continue;  // two instances ago: it ended long before
    const bool before = need.previous || at.before;
    if (!ended[before ? 1 : 0][need.task]) return {need.task, before};
  }
  return {};
}

}  // namespace

Index cause_of(const plan::Schedule& schedule, const Ended& ended, Index task, Index pass) {
  At at{task, false};
  for (std::size_t looked = 0; looked < schedule.tasks.size(); ++looked) {
    auto need = open_need(schedule, ended, at);
    const bool computes = schedule.tasks[at.task].lane == plan::Lane::compute;
    if (need.task == plan::kNone && computes && pass != plan::kNone && pass != at.task) need = {pass, false};
    if (need.task == plan::kNone) break;
    at = need;
  }
  return at.task;
}

std::string pass_words(const plan::Schedule& schedule, const state::Layout& layout, const plan::Task& task) {
  if (traits(task.what.kind).numbered == plan::Numbered::by_chunk) {
    return text(traits(task.what.kind).name, " of ", layout.blocks()[layout.chunks()[task.what.index].block].name);
  }
  const auto& pass = schedule.passes[task.what.index];
  return text(traits(pass.kind).name, " of ", layout.blocks()[pass.block].name);
}

}  // namespace spillway::execute
