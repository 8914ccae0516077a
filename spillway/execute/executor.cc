#include "spillway/execute/executor.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::Task;

namespace {

/// True if the task brings any of these chunks.
bool brings(const Task& task, plan::Range chunks) {
  return task.what.index < chunks.end() && chunks.first < task.what.end();
}

}  // namespace

Executor::Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores,
                   ComputeDevice device, OtherProcesses others, const WeightSlots* slots)
    : schedule_(schedule),
      arena_(arena),
      store_(store),
      work_(work),
      slots_(slots),
      waits_(schedule, [this](std::uint64_t instance, Index task) { return &bank(instance).times[task]; }) {
  if (device.device != nullptr) {
    const Listener listener{&Executor::transfer_issued, &Executor::transfer_done, this};
    copies_ = std::make_unique<Copies>(schedule, arena, *device.device, device.stream, *device.updates, listener);
    pass_clock_ = std::make_unique<PassClock>(schedule, *device.device, device.stream, clock_);
  }
  if (others.port != nullptr) {
    network_ = std::make_unique<NetworkLane>(
        schedule, *others.port, *others.work,
        [this](const Start& start, const std::exception_ptr& error) { network_ended(start, error); });
  }
  const auto n = schedule.tasks.size();
  same_.resize(n);
  next_.resize(n);
  for (Index t = 0; t < n; ++t) {
    for (const auto& need : schedule.tasks[t].needs) (need.previous ? next_ : same_)[need.task].push_back(t);
  }
  for (auto& bank : banks_) {
    bank.waiting.assign(n, 0);
    bank.ended.assign(n, 1);
    bank.issued.assign(n, 0);
    bank.kept.assign(schedule.update_task.size(), 0);
    bank.asked.resize(schedule.update_task.size());
    bank.times.assign(n, {});
  }
  last_times_.assign(n, {});
  pass_ready_.assign(schedule.passes.size(), 0);
  early_.reserve(schedule.update_task.size());
  for (auto* list : {&skipped_, &caller_transfers_}) list->reserve(n);
  pass_ = schedule.passes.size();
  updates_ = std::make_unique<UpdateLanes>(schedule, work, std::move(cores), clock_, mutex_,
                                           static_cast<UpdateLanes::Client&>(*this));
  lane_transfers_.resize(updates_->count());
  for (auto& list : lane_transfers_) list.reserve(n);
}

Executor::~Executor() {
  if (network_) network_->stop();
  updates_->stop();
  // Completions refer to this object: wait for what the path still has.
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

/// True if a pass was released when the copy or update that it needs came into its stream. A pass that its instance
/// skips has no place in the device's order: it is released when the copy has ended.
bool Executor::follows_issue(const Start& follower, const Start& start) {
  const auto& task = schedule_.tasks[follower.task];
  return bank(start.instance).issued[start.task] && copies_->feeds_pass(start.task, follower.task) &&
         task.when.may_run(bank(follower.instance).facts);
}

void Executor::release(const Start& follower, std::vector<Start>& transfers, std::vector<Start>& skipped) {
  if (--bank(follower.instance).waiting[follower.task] == 0) make_ready(follower, transfers, skipped);
}

void Executor::end_task(Start start, std::vector<Start>& transfers) {
  // A worklist, because tasks that are skipped end at once and release others.
  std::vector<Start>& work = skipped_;
  const auto bottom = work.size();
  work.push_back(start);
  while (work.size() > bottom) {
    const auto it = work.back();
    work.pop_back();
    auto& its_bank = bank(it.instance);
    its_bank.ended[it.task] = 1;
    const auto& when = schedule_.tasks[it.task].when;
    if (when.only == plan::OnlyIf::asked || when.waits()) compute_wake_.notify_all();
    each_follower(it, [&](const Start& follower) {
      if (!follows_issue(follower, it)) release(follower, transfers, work);
    });
    if (--its_bank.left == 0) {
      its_bank.open = false;
      if (its_bank.mode.passes && its_bank.mode.backward) {
        std::copy(its_bank.times.begin(), its_bank.times.end(), last_times_.begin());
        last_instance_ = it.instance;
      }
      idle_.notify_all();
      compute_wake_.notify_all();
    }
  }
}

// ---- the caller ----

const plan::Pass* Executor::next() {
  std::unique_lock lock(mutex_);
  const auto& facts = bank(instances_ - 1).facts;
  const auto is_left_out = [&](const plan::Pass& pass) { return !schedule_.tasks[pass.task].when.may_run(facts); };
  while (pass_ < schedule_.passes.size() && is_left_out(schedule_.passes[pass_])) ++pass_;
  if (pass_ == schedule_.passes.size()) {
    help_until(lock, compute_wake_, [&] { return feeding_ == 0; });
    throw_failure();
    if (pass_clock_ && facts.passes) pass_clock_->end_instance();
    return nullptr;
  }
  const auto& pass = schedule_.passes[pass_];
  if (!pass_ready_[pass_] && !failure_) {
    const auto begin = now();
    help_until(lock, compute_wake_, [&] { return pass_ready_[pass_] != 0; });
    waits_.add(static_cast<Index>(pass_), begin, now());
  }
  throw_failure();
  bank(instances_ - 1).times[pass.task].start = now();
  held_ = pass.asks;
  std::erase_if(held_, [&](Index t) { return !bank(instances_ - 1).asked.holds(schedule_.tasks[t], facts); });
  if (copies_) await_needs(lock, static_cast<Index>(pass_));
  return &pass;
}

/// On a device that the host computes for, the stream's waits are the caller's.
void Executor::await_needs(std::unique_lock<std::mutex>& lock, Index pass) {
  updates_->caller_waits(true);
  lock.unlock();
  pass_clock_->reach_pass(pass);
  copies_->await_needs(instances_ - 1, pass);
  pass_clock_->begin_pass(pass);
  lock.lock();
  updates_->caller_waits(false);
}

void Executor::settle_waits() {
  std::unique_lock lock(mutex_);
  settle_waits(lock);
}

void Executor::settle_waits(std::unique_lock<std::mutex>& lock) {
  std::vector<PassClock::Span> spans;
  if (pass_clock_ && instances_ > 0) {
    lock.unlock();
    spans = pass_clock_->read_spans(instances_ - 1);
    lock.lock();
  }
  waits_.settle(spans);
}

void Executor::done() {
  if (copies_) copies_->issued(instances_ - 1, static_cast<Index>(pass_));
  if (pass_clock_) pass_clock_->end_pass(static_cast<Index>(pass_));
  std::unique_lock lock(mutex_);
  const auto instance = instances_ - 1;
  const auto task = schedule_.passes[pass_].task;
  bank(instance).times[task].end = now();
  ++pass_;
  caller_transfers_.clear();
  release_held([](const Task&) { return true; }, caller_transfers_);  // what nobody has asked for is skipped
  skipped_.clear();
  end_task({instance, task}, caller_transfers_);
  lock.unlock();
  launch(caller_transfers_);
}

/// Releases tasks that the pass may ask for and has not.
template <class Filter>
void Executor::release_held(const Filter& filter, std::vector<Start>& transfers) {
  std::vector<Start> skipped;
  std::erase_if(held_, [&](Index t) {
    if (!filter(schedule_.tasks[t])) return false;
    release({instances_ - 1, t}, transfers, skipped);
    return true;
  });
  for (const auto& start : skipped) end_task(start, transfers);
}

void Executor::ask(plan::Range chunks) {
  std::vector<Start> transfers;
  {
    const std::lock_guard lock(mutex_);
    auto& asked = bank(instances_ - 1).asked;
    const bool forward = traits(schedule_.passes[pass_].kind).phase == plan::Phase::forward;
    for (auto c = chunks.first; forward && c < chunks.end(); ++c) asked.ask(schedule_, c, work_);
    release_held([&](const Task& task) { return brings(task, chunks); }, transfers);
  }
  launch(transfers);
}

void Executor::await(plan::Range chunks) {
  ask(chunks);
  std::unique_lock lock(mutex_);
  auto& its_bank = bank(instances_ - 1);
  std::vector<Index> tasks;
  for (const auto t : schedule_.passes[pass_].asks) {
    if (!brings(schedule_.tasks[t], chunks)) continue;
    tasks.push_back(t);
    if (its_bank.asked.is_asked(schedule_.tasks[t].what.index)) continue;
    throw Error(ErrorCode::bad_input, "a backward pass asks for weights that its forward pass did not ask for");
  }
  const auto begin = now();
  const auto ended = [&] { return std::ranges::all_of(tasks, [&](Index t) { return its_bank.ended[t] != 0; }); };
  if (ended()) return;
  help_until(lock, compute_wake_, ended);
  throw_failure();
  waits_.add_asked(static_cast<Index>(pass_), begin, now());
}

void Executor::drain() {
  std::unique_lock lock(mutex_);
  help_until(lock, idle_, [&] { return !banks_[0].open && !banks_[1].open; });
  throw_failure();
}

std::vector<Updated> Executor::updated() const {
  const std::lock_guard lock(mutex_);
  return updates_->updated();
}

std::vector<Times> Executor::last_times() const {
  std::unique_lock lock(mutex_);
  auto out = last_times_;
  const auto instance = last_instance_;
  lock.unlock();
  if (!pass_clock_) return out;
  const auto spans = pass_clock_->read_spans(instance);
  for (std::size_t pass = 0; pass < spans.size(); ++pass) {
    auto& times = out[schedule_.passes[pass].task];
    times.device_start = spans[pass].start;
    times.device_end = spans[pass].end;
  }
  return out;
}

std::vector<PassClock::Total> Executor::device_passes() const {
  return pass_clock_ ? pass_clock_->read_totals() : std::vector<PassClock::Total>();
}

void Executor::fail(std::exception_ptr error) {
  if (!failure_ && store_ != nullptr) store_->give_up(error);
  if (!failure_) failure_ = std::move(error);
  updates_->halt();
  if (network_) network_->halt();
  compute_wake_.notify_all();
  idle_.notify_all();
}

void Executor::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

/// The caller waits, no update can begin, and every transfer is a write that waits for a place: nobody is left who
/// would give one back, nor change that. (In a world of several, what arrives from others may.)
bool Executor::stalled() const {
  if (network_ && !network_->ended()) return false;
  return store_ != nullptr && in_flight_ > 0 && updates_->idle() && store_->stalled() >= in_flight_;
}

}  // namespace spillway::execute
