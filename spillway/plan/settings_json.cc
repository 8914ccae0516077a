#include "spillway/plan/settings_json.h"

#include <nlohmann/json.hpp>

#include "spillway/base/field_json.h"
#include "spillway/plan/settings_fields.h"

namespace spillway::plan {

nlohmann::json to_json(const EngineSettings& settings) {
  return make_json(settings);
}

EngineSettings parse_settings(const nlohmann::json& json) {
  const JsonFile file{.name = "settings"};
  const JsonValue from(json, file);
  if (!json.is_object()) from.refuse("is not a JSON object");
  EngineSettings out;
  read_json(out, from);
  return out;
}

}  // namespace spillway::plan
