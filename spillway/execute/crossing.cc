#include "spillway/execute/crossing.h"

#include <algorithm>

namespace spillway::execute {

std::vector<Bytes> crossing_offsets(const plan::Schedule& schedule) {
  std::vector<const plan::Task*> copies;
  for (const auto& task : schedule.tasks) {
    if (is_link(task.lane) && task.bytes > 0) copies.push_back(&task);
  }
  std::ranges::stable_sort(copies, {}, &plan::Task::deadline);
  std::vector<Bytes> out;
  for (const auto* copy : copies) {
    const auto& place = copy->on_host();
    const auto first = schedule.buffers[place.buffer].offset + place.offset;
    out.push_back(first);
    out.push_back(first + copy->bytes - 1);
  }
  return out;
}

}  // namespace spillway::execute
