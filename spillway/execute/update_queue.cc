#include "spillway/execute/update_queue.h"

#include <algorithm>

namespace spillway::execute {

void UpdateQueue::reserve(std::size_t tasks) {
  for (auto* heap : {&ready_, &when_idle_}) heap->reserve(tasks);
}

void UpdateQueue::push(const Entry& entry, bool is_idle_priority) {
  auto& heap = is_idle_priority ? when_idle_ : ready_;
  heap.push_back(entry);
  std::push_heap(heap.begin(), heap.end());
}

Start UpdateQueue::pop(bool caller_waits) {
  const bool idle = caller_waits && !when_idle_.empty() && (ready_.empty() || ready_.front() < when_idle_.front());
  auto& heap = idle ? when_idle_ : ready_;
  std::pop_heap(heap.begin(), heap.end());
  const auto start = heap.back().start;
  heap.pop_back();
  return start;
}

std::optional<Start> UpdateQueue::take_early() {
  const auto it = std::ranges::find_if(ready_, &Entry::early);
  if (it == ready_.end()) return std::nullopt;
  const auto start = it->start;
  *it = ready_.back();
  ready_.pop_back();
  std::make_heap(ready_.begin(), ready_.end());
  return start;
}

}  // namespace spillway::execute
