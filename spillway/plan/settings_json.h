// Settings as the file that a run keeps of them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "spillway/plan/settings.h"

namespace spillway::plan {

/// Every field but the profile, which is a file of its own kind (machine/profile_json.h). Empty ones are left out.
[[nodiscard]] nlohmann::json to_json(const EngineSettings& settings);

/// The reverse. Fields that are missing have their defaults. Throws Error(bad_input) that names the key.
[[nodiscard]] EngineSettings parse_settings(const nlohmann::json& json);

}  // namespace spillway::plan
