#include "spillway/plan/traffic.h"

namespace spillway::plan {

Traffic traffic_of(const Schedule& schedule) {
  Traffic sum;
  for (const auto& task : schedule.tasks) {
    if (task.op == Op::transfer && !task.when.is_free) {
      sum[task.lane] += static_cast<Bytes>(static_cast<double>(task.bytes / task.when.every) * task.when.share);
    }
  }
  return sum;
}

}  // namespace spillway::plan
