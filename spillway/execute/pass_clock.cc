#include "spillway/execute/pass_clock.h"

namespace spillway::execute {

PassClock::PassClock(const plan::Schedule& schedule, device::Device& device, device::Stream compute, const Clock& clock)
    : schedule_(schedule), device_(device), compute_(compute), known_(device.make_timed_event()) {
  for (auto& it : instances_) {
    it.events.resize(schedule.passes.size());
    for (auto& events : it.events) events = {device.make_timed_event(), device.make_timed_event()};
    it.issued.reserve(schedule.passes.size());
    it.spans.reserve(schedule.passes.size());
  }
  totals_.resize(plan::kPasses.size());
  device_.record(known_, compute_);
  device_.synchronise(known_);
  known_at_ = clock.now();
}

void PassClock::begin(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  // `known_` may be of the one whose events are recorded again now: the one after that has to be known before.
  auto& last_but_one = instance(1);
  if (last_but_one.ended && !last_but_one.counted) {
    if (!last_but_one.issued.empty()) device_.synchronise(last_but_one.events[last_but_one.issued.back()].last);
    count(last_but_one);
  }
  look();
  ++begun_;
  auto& it = instance();
  it.number = number;
  it.issued.clear();
  it.spans.clear();
  it.ended = it.counted = false;
}

void PassClock::opened(plan::Index pass) {
  if (traits(schedule_.passes[pass].kind).of_rows) return;  // the host's
  device_.record(instance().events[pass].first, compute_);
}

void PassClock::issued(plan::Index pass) {
  if (traits(schedule_.passes[pass].kind).of_rows) return;
  device_.record(instance().events[pass].last, compute_);
  const std::lock_guard lock(mutex_);
  instance().issued.push_back(pass);
}

void PassClock::end() {
  const std::lock_guard lock(mutex_);
  instance().ended = true;
}

bool PassClock::done(const Instance& it) {
  return it.ended && (it.issued.empty() || device_.done(it.events[it.issued.back()].last));
}

/// What is known of an instance before says when the device came to the first event of this one: seconds between two
/// events are in single precision, good for minutes.
void PassClock::count(Instance& it) {
  it.counted = true;
  it.spans.resize(schedule_.passes.size());
  if (it.issued.empty()) return;
  const auto begin = it.events[it.issued.front()].first;
  known_at_ += device_.seconds_between(known_, begin);
  known_ = begin;
  for (const auto pass : it.issued) {
    auto& span = it.spans[pass];
    span.start = known_at_ + device_.seconds_between(begin, it.events[pass].first);
    span.end = known_at_ + device_.seconds_between(begin, it.events[pass].last);
    auto& total = totals_[static_cast<std::size_t>(schedule_.passes[pass].kind)];
    ++total.passes;
    total.seconds += span.end - span.start;
  }
}

/// Oldest first.
void PassClock::look() {
  for (auto before = kKept; before-- > 0;) {
    auto& it = instance(before);
    if (!it.counted && done(it)) count(it);
  }
}

std::vector<PassClock::Span> PassClock::spans(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  look();
  for (const auto& it : instances_) {
    if (it.number == number && it.counted) return it.spans;
  }
  return {};
}

std::vector<PassClock::Total> PassClock::totals() {
  const std::lock_guard lock(mutex_);
  look();
  return totals_;
}

}  // namespace spillway::execute
