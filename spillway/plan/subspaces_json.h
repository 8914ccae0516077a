// "subspaces" of plan.json, of this machine's plan and of another's.
#pragma once

#include <nlohmann/json.hpp>

#include "spillway/plan/planner.h"
#include "spillway/plan/subspace_share.h"

namespace spillway::plan {

/// What learns in subspaces, and the same plan in full, where that fits.
[[nodiscard]] nlohmann::json subspaces_json(const SubspaceShare& share, const InFull& in_full, bool helps);

}  // namespace spillway::plan
