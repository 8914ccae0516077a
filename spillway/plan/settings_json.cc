#include "spillway/plan/settings_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "spillway/base/error.h"
#include "spillway/plan/field_json.h"
#include "spillway/plan/settings_fields.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

constexpr double kMost = 1e18;

[[noreturn]] void refuse(const std::string& key, const json& value, const char* why) {
  throw Error(ErrorCode::bad_input, text("the key ", key, " has the value ", value.dump(), why));
}

double read_number(const json& value, const std::string& key) {
  if (!value.is_number()) refuse(key, value, ", which has the wrong type");
  const auto number = value.get<double>();
  if (!(number >= 0) || number > kMost) refuse(key, value, "; it must be 0 or more");
  return number;
}

void read(ShareOrTier& out, const json& value, const std::string& key);
void read(machine::Profile& out, const json& value, const std::string& key);
template <class T>
void read(std::vector<T>& out, const json& value, const std::string& key);
template <class T>
void read(std::optional<T>& out, const json& value, const std::string& key);

template <class T>
void read(T& out, const json& value, const std::string& key) {
  if constexpr (kHasFields<T>) {
    if (!value.is_object()) refuse(key, value, ", which has the wrong type");
    for_each_field<T>([&](const auto& field) {
      const auto entry = value.find(field.name);
      if (entry == value.end() || entry->is_null()) return;
      read(out.*field.member, *entry, key.empty() ? field.name : text(key, ".", field.name));
    });
  } else if constexpr (kHasWords<T>) {
    if (!value.is_string()) refuse(key, value, ", which has the wrong type");
    out = parse_word<T>(value.get<std::string>(), key);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) refuse(key, value, ", which has the wrong type");
    out = value.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) refuse(key, value, ", which has the wrong type");
    out = value.get<std::string>();
  } else if constexpr (std::is_floating_point_v<T>) {
    out = read_number(value, key);
  } else {
    const auto number = read_number(value, key);
    const auto whole = value.is_number_unsigned() ? value.get<std::uint64_t>() : static_cast<std::uint64_t>(number);
    out = static_cast<T>(std::min<std::uint64_t>(whole, std::numeric_limits<T>::max()));
  }
}
void read(ShareOrTier& out, const json& value, const std::string& key) {
  if (value.is_string()) {
    out = value.get<std::string>();
  } else {
    out = read_number(value, key);
  }
}
template <class T>
void read(std::vector<T>& out, const json& value, const std::string& key) {
  if (!value.is_array()) refuse(key, value, ", which has the wrong type");
  for (std::size_t i = 0; i < value.size(); ++i) read(out.emplace_back(), value[i], text(key, "[", i, "]"));
}
template <class T>
void read(std::optional<T>& out, const json& value, const std::string& key) {
  read(out.emplace(), value, key);
}
void read(machine::Profile& /*out*/, const json& /*value*/, const std::string& /*key*/) {}

}  // namespace

json to_json(const EngineSettings& settings) {
  auto out = make_json(settings);
  out.erase("profile");
  return out;
}

EngineSettings parse_settings(const json& object) {
  if (!object.is_object()) throw Error(ErrorCode::bad_input, "the settings are not a JSON object");
  EngineSettings out;
  read(out, object, "");
  return out;
}

}  // namespace spillway::plan
