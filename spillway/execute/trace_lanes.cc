#include "spillway/execute/trace.h"

namespace spillway::execute {

bool has_lane(const plan::Plan& plan, plan::Lane lane) {
  if (lane == plan::Lane::network) return !plan.schedule.network.empty();
  return lane == plan::Lane::refit ? plan.schedule.has_refits() : plan.placement.device || !is_of_device(lane);
}

}  // namespace spillway::execute
