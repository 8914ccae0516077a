#include "spillway/execute/dependency_tracker.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::Task;

namespace {

/// True if the task brings any of these chunks.
bool brings(const Task& task, plan::Range chunks) {
  return task.what.index < chunks.end() && chunks.first < task.what.end();
}

}  // namespace

bool feeds_pass(const plan::Schedule& schedule, plan::Index task, plan::Index pass_task) {
  const auto& pass = schedule.tasks[pass_task];
  return plan::is_of_device(schedule.tasks[task].lane) && pass.op == plan::Op::compute &&
         !schedule.passes[pass.what.index].on_host;
}

DependencyTracker::DependencyTracker(const plan::Schedule& schedule, UpdateWork& work)
    : schedule_(schedule), work_(work) {
  const auto n = schedule.tasks.size();
  same_.resize(n);
  next_.resize(n);
  for (Index t = 0; t < n; ++t) {
    for (const auto& need : schedule.tasks[t].needs) (need.previous ? next_ : same_)[need.task].push_back(t);
  }
  for (auto& instance : instances_) {
    instance.waiting.assign(n, 0);
    instance.ended.assign(n, 1);
    instance.issued.assign(n, 0);
    instance.kept.assign(schedule.update_task.size(), 0);
    instance.asked.resize(schedule.update_task.size());
    instance.times.assign(n, {});
  }
  last_times_.assign(n, {});
  ends_.reserve(n);
  early_.reserve(schedule.update_task.size());
  pass_ = static_cast<Index>(schedule.passes.size());
}

// ---- instances ----

void DependencyTracker::begin(const Mode& mode, Released& released) {
  const auto number = count_;
  auto& instance = at(number);
  const auto& before = at(number + 1);
  const auto n = schedule_.tasks.size();
  open(instance, mode);
  for (Index t = 0; t < n; ++t) {
    const bool is_held = instance.asked.holds(schedule_.tasks[t], instance.facts);
    std::uint32_t waits = is_held ? 2 : 1;  // kept back until all are counted
    for (const auto& need : schedule_.tasks[t].needs) {
      const bool is_past = need.previous && (number == 0 || before.ended[need.task] ||
                                             follows_issue({number, t}, {number - 1, need.task}));
      waits += !is_past;
    }
    instance.waiting[t] = waits;
    instance.ended[t] = instance.issued[t] = 0;
    instance.times[t] = {};
  }
  ++count_;
  pass_ = 0;
  for (Index t = 0; t < n; ++t) {
    release({number, t}, released);
    end_skipped(released);
  }
}

void DependencyTracker::open(Instance& instance, const Mode& mode) {
  instance.mode = mode;
  instance.left = schedule_.tasks.size();
  if (mode.update || mode.stored) changed_.updated = true;
  if (mode.stored) changed_.stored = true;
  instance.facts = {.update = mode.update,
                    .passes = mode.passes,
                    .backward = mode.backward,
                    .early = mode.early,
                    .trial = mode.trial,
                    .catches_up = true,
                    .has_changed_weights = changed_.updated,
                    .has_stored_weights = changed_.stored,
                    .updates = mode.updates};
  if (mode.passes) changed_ = {.updated = false, .stored = false};
  std::ranges::fill(instance.kept, std::uint8_t{0});
  for (const auto chunk : early_) instance.kept[chunk] = mode.kept ? 1 : 0;
  early_.clear();
  instance.asked.begin(schedule_, instance.facts, at(count_ + 1).asked, work_);
}

void DependencyTracker::close(const Start& last, Released& released) {
  const auto& instance = at(last.instance);
  if (instance.mode.passes && instance.mode.backward) {
    std::ranges::copy(instance.times, last_times_.begin());
    last_instance_ = last.instance;
  }
  released.awaited = true;
}

bool DependencyTracker::runs(const Instance& instance, const Task& task) const {
  struct ChunkFacts {
    const Instance& instance;
    const UpdateWork& work;
    [[nodiscard]] bool has_refit(Index c) const { return work.refits(c); }
    [[nodiscard]] bool is_refit_due(Index c) const { return work.refit_is_due(c); }
    [[nodiscard]] bool keeps_early_update(Index c) const { return instance.kept[c] != 0; }
    [[nodiscard]] bool is_asked(Index c) const { return instance.asked.is_asked(c); }
    [[nodiscard]] bool was_asked(Index c) const { return instance.asked.was_asked(c); }
    [[nodiscard]] bool is_due(Index c) const { return instance.asked.is_due(c); }
  };
  return task.when.runs(instance.facts, ChunkFacts{instance, work_}, task.what.index, task.what.end());
}

// ---- tasks ----

template <class Body>
void DependencyTracker::each_follower(const Start& start, const Body& body) const {
  for (const auto follower : same_[start.task]) body(Start{start.instance, follower});
  if (start.instance + 1 >= count_) return;
  for (const auto follower : next_[start.task]) body(Start{start.instance + 1, follower});
}

/// True if a pass was released when the copy or update that it needs came into its stream. A pass that its instance
/// skips has no place in the device's order: it is released when the copy has ended.
bool DependencyTracker::follows_issue(const Start& follower, const Start& start) const {
  return is_issued(start) && feeds_pass(schedule_, start.task, follower.task) &&
         schedule_.tasks[follower.task].when.may_run(at(follower.instance).facts);
}

/// One thing fewer that the task waits for.
void DependencyTracker::release(const Start& start, Released& released) {
  auto& instance = at(start.instance);
  if (--instance.waiting[start.task] != 0) return;
  const auto& task = schedule_.tasks[start.task];
  const bool runs_here = runs(instance, task);
  if (brings_if_asked(task) && task.when.may_run(instance.facts)) {
    for (auto c = task.what.index; c < task.what.end(); ++c) work_.expect_gradient(c, runs_here);
  }
  if (runs_here) {
    released.ready.push_back(start);
    return;
  }
  released.skipped.push_back(start);
  ends_.push_back(start);
}

void DependencyTracker::end_skipped(Released& released) {
  while (!ends_.empty()) {
    const auto it = ends_.back();
    ends_.pop_back();
    auto& instance = at(it.instance);
    instance.ended[it.task] = 1;
    const auto& when = schedule_.tasks[it.task].when;
    if (when.only == plan::OnlyIf::asked || when.waits()) released.awaited = true;
    each_follower(it, [&](const Start& follower) {
      if (!follows_issue(follower, it)) release(follower, released);
    });
    if (--instance.left == 0) close(it, released);
  }
}

void DependencyTracker::end(const Start& start, Released& released) {
  const auto& task = schedule_.tasks[start.task];
  if (task.when.phase == plan::Phase::early) {
    early_.push_back(task.what.index);
    released.awaited = true;
  }
  skip(start, released);
}

void DependencyTracker::skip(const Start& start, Released& released) {
  ends_.push_back(start);
  end_skipped(released);
}

void DependencyTracker::issue(const Start& start, Released& released) {
  at(start.instance).issued[start.task] = 1;
  each_follower(start, [&](const Start& follower) {
    if (follows_issue(follower, start)) release(follower, released);
  });
}

bool DependencyTracker::have_ended(std::span<const Index> tasks) const {
  return std::ranges::all_of(tasks, [&](Index t) { return at(newest()).ended[t] != 0; });
}

// ---- passes ----

plan::Index DependencyTracker::find_pass() {
  const auto& facts = at(newest()).facts;
  const auto runs = [&](const plan::Pass& pass) { return schedule_.tasks[pass.task].when.may_run(facts); };
  while (pass_ < schedule_.passes.size() && !runs(schedule_.passes[pass_])) ++pass_;
  return pass_;
}

void DependencyTracker::begin_pass() {
  held_ = schedule_.passes[pass_].asks;
  const auto& instance = at(newest());
  std::erase_if(held_, [&](Index t) { return !instance.asked.holds(schedule_.tasks[t], instance.facts); });
}

template <class Filter>
void DependencyTracker::release_held(const Filter& filter, Released& released) {
  std::erase_if(held_, [&](Index t) {
    if (!filter(schedule_.tasks[t])) return false;
    release({newest(), t}, released);
    return true;
  });
  end_skipped(released);
}

void DependencyTracker::ask(plan::Range chunks, Released& released) {
  auto& asked = at(newest()).asked;
  const bool forward = traits(schedule_.passes[pass_].kind).phase == plan::Phase::forward;
  for (auto c = chunks.first; forward && c < chunks.end(); ++c) asked.ask(schedule_, c, work_);
  release_held([&](const Task& task) { return brings(task, chunks); }, released);
}

std::vector<plan::Index> DependencyTracker::find_asked(plan::Range chunks) const {
  std::vector<Index> out;
  for (const auto t : schedule_.passes[pass_].asks) {
    if (!brings(schedule_.tasks[t], chunks)) continue;
    out.push_back(t);
    if (at(newest()).asked.is_asked(schedule_.tasks[t].what.index)) continue;
    throw Error(ErrorCode::bad_input, "a backward pass asks for weights that its forward pass did not ask for");
  }
  return out;
}

void DependencyTracker::end_pass(Released& released) {
  const auto task = schedule_.passes[pass_].task;
  ++pass_;
  release_held([](const Task&) { return true; }, released);  // what nobody has asked for is skipped
  skip({newest(), task}, released);
}

}  // namespace spillway::execute
