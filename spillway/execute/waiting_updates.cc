#include "spillway/execute/waiting_updates.h"

#include <algorithm>

namespace spillway::execute {

WaitingUpdates::WaitingUpdates(const plan::Schedule& schedule) : schedule_(schedule) {
  for (plan::Index c = 0; c < schedule.update_task.size() && chunks_.empty(); ++c) {
    if (schedule.update_waits(c)) chunks_.resize(schedule.update_task.size());
  }
}

void WaitingUpdates::add(const optim::Step& step) {
  if (chunks_.empty()) return;
  drop_taken();
  steps_.push_back(step);
}

/// Forgets the steps that every chunk has taken.
void WaitingUpdates::drop_taken() {
  auto least = first_ + steps_.size();
  for (plan::Index c = 0; c < chunks_.size(); ++c) {
    if (schedule_.update_waits(c)) least = std::min(least, chunks_[c].end);
  }
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(least - first_));
  first_ = least;
}

bool WaitingUpdates::take(plan::Index chunk) {
  auto& it = chunks_[chunk];
  const auto end = first_ + steps_.size();
  if (it.end == end) return false;
  it = {.first = it.end, .end = end};
  return true;
}

bool WaitingUpdates::any() const {
  const auto end = first_ + steps_.size();
  for (plan::Index c = 0; c < chunks_.size(); ++c) {
    if (schedule_.update_waits(c) && chunks_[c].end != end) return true;
  }
  return false;
}

std::span<const optim::Step> WaitingUpdates::list_steps(plan::Index chunk) const {
  const auto& it = chunks_[chunk];
  return std::span(steps_).subspan(it.first - first_, it.end - it.first);
}

}  // namespace spillway::execute
