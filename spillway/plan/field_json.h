// Structs that name their fields (base/field.h) as JSON, for files.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "spillway/base/field.h"

namespace spillway {

template <class T>
[[nodiscard]] nlohmann::json make_json(const T& value);

namespace field_json {

template <class T>
nlohmann::json convert(const std::optional<T>& value) {
  return value ? make_json(*value) : nlohmann::json();
}
template <class T>
nlohmann::json convert(const std::vector<T>& values) {
  auto out = nlohmann::json::array();
  for (const auto& value : values) out.push_back(make_json(value));
  return out;
}
template <class T>
nlohmann::json convert(const std::map<std::string, T>& values) {
  auto out = nlohmann::json::object();
  for (const auto& [key, value] : values) out[key] = make_json(value);
  return out;
}
template <class... Ts>
nlohmann::json convert(const std::variant<Ts...>& value) {
  return std::visit([](const auto& it) { return make_json(it); }, value);
}
template <class T>
nlohmann::json convert(const T& value) {
  return value;
}

template <class T>
bool is_empty(const std::optional<T>& value) {
  return !value;
}
template <class T>
bool is_empty(const std::map<std::string, T>& values) {
  return values.empty();
}
template <class T>
bool is_empty(const T& /*value*/) {
  return false;
}

}  // namespace field_json

/// An object by kFields, a word by kWords; other values as they are. Optionals without a value and empty maps are left
/// out, unless their field says otherwise.
template <class T>
nlohmann::json make_json(const T& value) {
  if constexpr (kHasFields<T>) {
    auto out = nlohmann::json::object();
    for_each_field<T>([&](const auto& field) {
      const auto& it = value.*field.member;
      if (field.empty == Empty::written || !field_json::is_empty(it)) out[field.key()] = make_json(it);
    });
    return out;
  } else if constexpr (kHasWords<T>) {
    return word_of(value);
  } else {
    return field_json::convert(value);
  }
}

}  // namespace spillway
