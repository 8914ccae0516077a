#include "spillway/execute/pass_clock.h"

namespace spillway::execute {

PassClock::PassClock(const plan::Schedule& schedule, device::Device& device, device::Stream compute, const Clock& clock)
    : schedule_(schedule), device_(device), compute_(compute), anchor_(device.make_timed_event()) {
  for (auto& instance : instances_) {
    instance.events.resize(schedule.passes.size());
    for (auto& events : instance.events) {
      events = {device.make_timed_event(), device.make_timed_event(), device.make_timed_event()};
    }
    instance.issued.reserve(schedule.passes.size());
    instance.spans.reserve(schedule.passes.size());
  }
  totals_.resize(plan::kPasses.size());
  device_.record(anchor_, compute_);
  device_.synchronise(anchor_);
  anchor_seconds_ = clock.now();
}

void PassClock::begin_instance(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  // The anchor may be an event of the oldest instance, whose events are recorded again now. The next one replaces it.
  auto& next = instance(1);
  if (next.is_ended && !next.is_read) {
    if (!next.issued.empty()) device_.synchronise(next.events[next.issued.back()].end);
    read(next);
  }
  read_all_done();
  ++newest_;
  auto& newest = instance();
  newest.number = number;
  newest.issued.clear();
  newest.spans.clear();
  newest.is_ended = newest.is_read = false;
}

void PassClock::reach_pass(plan::Index pass) {
  if (traits(schedule_.passes[pass].kind).of_rows) return;  // runs on the host
  device_.record(instance().events[pass].ready, compute_);
}

void PassClock::begin_pass(plan::Index pass) {
  if (traits(schedule_.passes[pass].kind).of_rows) return;
  device_.record(instance().events[pass].start, compute_);
}

void PassClock::end_pass(plan::Index pass) {
  if (traits(schedule_.passes[pass].kind).of_rows) return;
  device_.record(instance().events[pass].end, compute_);
  const std::lock_guard lock(mutex_);
  instance().issued.push_back(pass);
}

void PassClock::end_instance() {
  const std::lock_guard lock(mutex_);
  instance().is_ended = true;
}

bool PassClock::is_done(const Instance& instance) {
  return instance.is_ended && (instance.issued.empty() || device_.done(instance.events[instance.issued.back()].end));
}

/// The first event becomes the anchor of later instances: cuEventElapsedTime is single precision, good for minutes.
void PassClock::read(Instance& instance) {
  instance.is_read = true;
  instance.spans.resize(schedule_.passes.size());
  if (instance.issued.empty()) return;
  const auto first = instance.events[instance.issued.front()].start;
  anchor_seconds_ += device_.seconds_between(anchor_, first);
  anchor_ = first;
  for (const auto pass : instance.issued) {
    auto& span = instance.spans[pass];
    span.ready = anchor_seconds_ + device_.seconds_between(anchor_, instance.events[pass].ready);
    span.start = anchor_seconds_ + device_.seconds_between(anchor_, instance.events[pass].start);
    span.end = anchor_seconds_ + device_.seconds_between(anchor_, instance.events[pass].end);
    auto& total = totals_[static_cast<std::size_t>(schedule_.passes[pass].kind)];
    ++total.passes;
    total.seconds += span.end - span.start;
  }
}

/// From the oldest to the newest.
void PassClock::read_all_done() {
  for (auto age = kKept; age-- > 0;) {
    auto& it = instance(age);
    if (!it.is_read && is_done(it)) read(it);
  }
}

std::vector<PassClock::Span> PassClock::read_spans(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  read_all_done();
  for (const auto& instance : instances_) {
    if (instance.number == number && instance.is_read) return instance.spans;
  }
  return {};
}

std::vector<PassClock::Total> PassClock::read_totals() {
  const std::lock_guard lock(mutex_);
  read_all_done();
  return totals_;
}

}  // namespace spillway::execute
