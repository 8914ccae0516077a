#include "spillway/execute/pass_waits.h"

#include <algorithm>

namespace spillway::execute {

void PassWaits::begin(std::uint64_t instance) {
  settle({});
  instance_ = instance;
  waits_.assign(schedule_.passes.size(), std::nullopt);
}

void PassWaits::settle(const std::vector<PassClock::Span>& spans) {
  double idle_from = 0;  // the device has ended the passes before
  for (plan::Index pass = 0; pass < waits_.size(); ++pass) {
    const auto& wait = waits_[pass];
    if (pass >= spans.size() || spans[pass].end == 0) {
      if (wait) add_part(pass, wait->begin, wait->end);
      continue;
    }
    const auto& span = spans[pass];
    const auto ready = wait ? std::max(span.ready, wait->end) : span.ready;
    if (wait) add_part(pass, std::max(wait->begin, idle_from), std::min(wait->end, span.start));
    add_part(pass, std::max(ready, idle_from), span.start);
    idle_from = span.end;
  }
  for (const auto& [pass, wait] : asked_) add_part(pass, wait.begin, wait.end);
  waits_.clear();
  asked_.clear();
}

void PassWaits::add_part(plan::Index pass, double begin, double end) {
  if (end <= begin) return;
  total_.add(schedule_, schedule_.passes[pass].task, begin, end, [&](plan::Index need, bool previous) {
    return previous && instance_ == 0 ? nullptr : look_(instance_ - (previous ? 1 : 0), need);
  });
}

}  // namespace spillway::execute
