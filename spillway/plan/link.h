// How long a copy over a device's link takes.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// The NUMA node of a copy's bytes on the host; of the first chunk where chunks stay on several nodes.
[[nodiscard]] std::size_t node_of_copy(const Task& task, const Schedule& schedule);

/// Seconds of a copy, alone or beside the other direction, which does not slow it down. What stays on a NUMA node
/// goes at the rate of the link from there (NodeRates), what comes and goes at that of the first node.
[[nodiscard]] double copy_seconds(const Task& task, const Schedule& schedule, const state::Layout& layout,
                                  const state::UpdateRule& rule, const Rates& rates);

}  // namespace spillway::plan
