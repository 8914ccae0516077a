#include "spillway/plan/traffic.h"

namespace spillway::plan {

Traffic traffic_of(const Schedule& schedule) {
  Traffic sum;
  for (const auto& task : schedule.tasks) {
    if (schedule.costs_nothing(task)) continue;
    if (task.lane == Lane::read) sum.read += task.bytes;
    if (task.lane == Lane::write) sum.written += task.bytes / task.every;
    if (task.lane == Lane::to_device) sum.to_device += task.bytes;
    if (task.lane == Lane::from_device) sum.from_device += task.bytes / task.every;
  }
  return sum;
}

}  // namespace spillway::plan
