// Who holds the arena.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Bytes by class of buffer of a tier at the position where most are in use, and "gaps" between them; sums to `arena`.
[[nodiscard]] std::map<std::string, Bytes> memory_breakdown(const Schedule& schedule, Bytes arena,
                                                            TierKind tier = TierKind::host);

/// The breakdown at every position of the step, without gaps.
[[nodiscard]] std::vector<std::map<std::string, Bytes>> breakdown_by_position(const Schedule& schedule,
                                                                              TierKind tier = TierKind::host);

}  // namespace spillway::plan
