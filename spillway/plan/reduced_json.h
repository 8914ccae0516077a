// What of plan.json is about reduced gradients, of this machine's plan and of another's.
#pragma once

#include <nlohmann/json.hpp>

#include "spillway/plan/planner.h"
#include "spillway/plan/reduced_share.h"

namespace spillway::plan {

/// What is reduced, and the same plan in full, where that fits.
[[nodiscard]] nlohmann::json reduced_json(const ReducedShare& share, const InFull& in_full, bool helps);

}  // namespace spillway::plan
