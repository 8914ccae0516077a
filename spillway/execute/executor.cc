#include "spillway/execute/executor.h"

#include <utility>

namespace spillway::execute {

Executor::Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores,
                   ComputeDevice device, OtherProcesses others, const WeightSlots* slots)
    : schedule_(schedule),
      dispatcher_(schedule, {arena, store, slots, device}, work, std::move(cores), others, clock_),
      waits_(schedule, [this](std::uint64_t instance, Index task) { return &times(instance, task); }) {
  if (device.device == nullptr) return;
  pass_clock_ = std::make_unique<PassClock>(schedule, *device.device, device.stream, clock_);
}

void Executor::begin(Mode mode) {
  dispatcher_.transfers().announce(mode);
  auto lock = dispatcher_.lock();
  auto& tasks = dispatcher_.tasks();
  dispatcher_.wait_until([&] { return tasks.has_room(); }, lock);
  settle_waits(lock);
  waits_.begin(tasks.count());
  dispatcher_.begin(mode, lock);
  lock.unlock();
  if (pass_clock_ && mode.passes) pass_clock_->begin_instance(tasks.newest());  // may wait for the device
}

// ---- passes ----

const plan::Pass* Executor::next() {
  auto lock = dispatcher_.lock();
  auto& tasks = dispatcher_.tasks();
  const auto pass = tasks.find_pass();
  if (pass == schedule_.passes.size()) {
    dispatcher_.wait_until([&] { return !dispatcher_.transfers().is_feeding(); }, lock);
    if (pass_clock_ && tasks.mode(tasks.newest()).passes) pass_clock_->end_instance();
    return nullptr;
  }
  if (!tasks.is_ready(pass)) {
    const auto begin = now();
    dispatcher_.wait_until([&] { return tasks.is_ready(pass); }, lock);
    waits_.add(pass, begin, now());
  }
  dispatcher_.throw_failure();
  const auto& out = schedule_.passes[pass];
  times(tasks.newest(), out.task).start = now();
  tasks.begin_pass();
  if (pass_clock_) await_needs(pass, lock);
  return &out;
}

/// On a device that the host computes for, the stream's waits are the caller's.
void Executor::await_needs(Index pass, Lock& lock) {
  const auto instance = dispatcher_.tasks().newest();
  const auto await = [&] {
    pass_clock_->reach_pass(pass);
    dispatcher_.transfers().copies()->await_needs(instance, pass);
    pass_clock_->begin_pass(pass);
  };
  dispatcher_.run_while_waiting(await, lock);
}

void Executor::done() {
  auto& tasks = dispatcher_.tasks();
  const auto instance = tasks.newest();
  const auto pass = tasks.pass();
  if (auto* const copies = dispatcher_.transfers().copies()) copies->issued(instance, pass);
  if (pass_clock_) pass_clock_->end_pass(pass);
  auto lock = dispatcher_.lock();
  times(instance, schedule_.passes[pass].task).end = now();
  dispatcher_.change([](auto& tracker, auto& released) { tracker.end_pass(released); }, lock);
}

void Executor::ask(plan::Range chunks) {
  auto lock = dispatcher_.lock();
  dispatcher_.ask(chunks, lock);
}

void Executor::await(plan::Range chunks) {
  auto lock = dispatcher_.lock();
  dispatcher_.ask(chunks, lock);
  const auto& tasks = dispatcher_.tasks();
  const auto asked = tasks.find_asked(chunks);
  const auto begin = now();
  if (tasks.have_ended(asked)) return;
  dispatcher_.wait_until([&] { return tasks.have_ended(asked); }, lock);
  waits_.add_asked(tasks.pass(), begin, now());
}

// ---- ends of instances ----

const std::vector<plan::Index>& Executor::end_early() {
  auto lock = dispatcher_.lock();
  auto& tasks = dispatcher_.tasks();
  auto& updates = dispatcher_.updates();
  if (tasks.count() == 0) return tasks.early();
  tasks.end_early();
  const auto drop = [&](DependencyTracker& tracker, Released& released) {
    while (const auto start = updates.take_early()) tracker.skip(*start, released);
  };
  dispatcher_.change(drop, lock);
  dispatcher_.wait_until([&] { return !updates.early_active(); }, lock);
  return tasks.early();
}

void Executor::end_network() {
  auto lock = dispatcher_.lock();
  dispatcher_.end_network(lock);
}

void Executor::drain() {
  auto lock = dispatcher_.lock();
  dispatcher_.wait_until([&] { return dispatcher_.tasks().all_ended(); }, lock);
}

// ---- measurements ----

void Executor::settle_waits() {
  auto lock = dispatcher_.lock();
  settle_waits(lock);
}

void Executor::settle_waits(Lock& lock) {
  const auto& tasks = dispatcher_.tasks();
  std::vector<PassClock::Span> spans;
  if (pass_clock_ && tasks.count() > 0) {
    lock.unlock();
    spans = pass_clock_->read_spans(tasks.newest());
    lock.lock();
  }
  waits_.settle(spans);
}

std::vector<Updated> Executor::updated() const {
  const auto lock = dispatcher_.lock();
  return dispatcher_.updates().updated();
}

std::vector<Times> Executor::last_times() const {
  auto lock = dispatcher_.lock();
  auto out = dispatcher_.tasks().last_times();
  const auto instance = dispatcher_.tasks().last_instance();
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

}  // namespace spillway::execute
