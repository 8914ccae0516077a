#include "spillway/plan/path_queue.h"

#include <algorithm>

namespace spillway::plan {
namespace {

constexpr double kNothing = 1e-3;  // bytes: what rounding leaves

}  // namespace

void PathQueue::add(std::uint64_t deadline, std::size_t transfer, double bytes, double most) {
  fill(most);
  take_back(most);
  waiting_[{deadline, transfer}].bytes += bytes;
}

const std::vector<std::size_t>& PathQueue::hand_over(double most) {
  fill(most);
  told_.swap(begun_);
  begun_.clear();
  return told_;
}

void PathQueue::fill(double most) {
  while (!waiting_.empty() && (handed_.empty() || in_flight_ <= most + kNothing)) {
    const auto next = waiting_.begin();
    const auto& [key, it] = *next;
    handed_.push_back({.key = key, .bytes = it.bytes, .first = !it.begun});
    in_flight_ += it.bytes;
    if (!it.begun) begun_.push_back(key.transfer);
    waiting_.erase(next);
  }
}

void PathQueue::take_back(double most) {
  while (!handed_.empty() && in_flight_ > most + kNothing) {
    auto& last = handed_.back();
    const auto back = std::min(last.bytes, in_flight_ - most);
    auto& rest = waiting_[last.key];
    rest.bytes += back;
    in_flight_ -= back;
    last.bytes -= back;
    const bool whole = last.bytes <= kNothing;
    rest.begun = !(whole && last.first);
    if (whole) handed_.pop_back();
  }
}

std::optional<std::size_t> PathQueue::move(double bytes) {
  auto& first = handed_.front();
  first.bytes -= bytes;
  in_flight_ = std::max(0.0, in_flight_ - bytes);
  if (first.bytes > kNothing) return std::nullopt;
  const auto key = first.key;
  handed_.pop_front();
  const bool more =
      waiting_.contains(key) || std::ranges::any_of(handed_, [&](const Part& it) { return it.key == key; });
  return more ? std::nullopt : std::optional(key.transfer);
}

}  // namespace spillway::plan
