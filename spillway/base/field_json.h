// Structs that name their fields (base/field.h) as JSON, for files: written and read by the same list.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "spillway/base/field.h"
#include "spillway/base/json_value.h"

namespace spillway {

/// Writes keys of another shape, after the fields of T. Specialised where T is written.
template <class T>
inline constexpr auto kAfterWrite = [](auto& /*json*/, const T& /*it*/) {};
/// Reads keys of another shape, after the fields of T, and checks fields that depend on each other.
template <class T>
inline constexpr auto kAfterRead = [](T& /*out*/, const JsonValue& /*from*/) {};

template <class Json = nlohmann::json, class T>
[[nodiscard]] Json make_json(const T& value);
template <class T>
void read_json(T& out, const JsonValue& from, const InFile& rule = {});

namespace field_json {

template <class Json, class T>
Json convert(const std::optional<T>& value) {
  return value ? make_json<Json>(*value) : Json();
}
template <class Json, class T>
Json convert(const std::vector<T>& values) {
  auto out = Json::array();
  for (const auto& value : values) out.push_back(make_json<Json>(value));
  return out;
}
template <class Json, class T>
Json convert(const std::map<std::string, T>& values) {
  auto out = Json::object();
  for (const auto& [key, value] : values) out[key] = make_json<Json>(value);
  return out;
}
template <class Json, class... Ts>
Json convert(const std::variant<Ts...>& value) {
  return std::visit([](const auto& it) { return make_json<Json>(it); }, value);
}
template <class Json, class T>
Json convert(const T& value) {
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

template <class Json, class T, class F>
void write(Json& out, const T& it, const F& field) {
  if constexpr (!kIsByHand<F>) {
    const auto& value = field.get(it);
    if (field.in_file.presence == Presence::with_value && is_empty(value)) return;
    auto json = make_json<Json>(value);
    if (field.in_file.presence == Presence::without_default && json == make_json<Json>(field.get(T{}))) return;
    out[name_key(field.name)] = std::move(json);
  }
}

template <class T, class F>
void read(T& out, const JsonValue& from, const F& field) {
  if constexpr (!kIsByHand<F>) {
    const auto key = name_key(field.name);
    if (field.in_file.presence != Presence::required && !from.has(key)) return;
    typename F::Value value = field.get(out);
    read_json(value, from.at(key), field.in_file);
    field.set(out, std::move(value));
  }
}

template <class T>
void refuse_others(const JsonValue& from) {
  for (const auto& [key, value] : from.json().items()) {
    bool is_known = false;
    for_each_field<T>([&](const auto& field) { is_known = is_known || name_key(field.name) == key; });
    if (!is_known) from.at(key).refuse(text("is not a key of a ", from.file().name));
  }
}

template <class T>
void parse(std::optional<T>& out, const JsonValue& from, const InFile& rule) {
  read_json(out.emplace(), from, rule);
}
template <class T>
void parse(std::vector<T>& out, const JsonValue& from, const InFile& rule) {
  from.require_list();
  if (rule.refuses_empty && from.json().empty()) from.refuse("is empty");
  out.clear();
  for (std::size_t i = 0; i < from.json().size(); ++i) read_json(out.emplace_back(), from.at(i), {.most = rule.most});
}
/// Lines of text, or one.
inline void parse(std::vector<std::string>& out, const JsonValue& from, const InFile& /*rule*/) {
  out.clear();
  if (from.json().is_string()) return out.push_back(from.read_text());
  from.require_list();
  for (const auto& line : from.json()) {
    if (!line.is_string()) from.refuse("is not text");
    out.push_back(line.get<std::string>());
  }
}
/// A number, or text.
inline void parse(std::variant<double, std::string>& out, const JsonValue& from, const InFile& rule) {
  if (from.json().is_string()) {
    out = from.read_text();
  } else {
    out = from.read_number<double>(rule.most);
  }
}
inline void parse(std::string& out, const JsonValue& from, const InFile& rule) {
  out = from.read_text();
  if (rule.refuses_empty && out.empty()) from.refuse("is not a name");
}
inline void parse(bool& out, const JsonValue& from, const InFile& /*rule*/) {
  out = from.read_flag();
}
template <class T>
requires std::is_arithmetic_v<T>
void parse(T& out, const JsonValue& from, const InFile& rule) {
  out = from.read_number<T>(rule.most);
  if (rule.refuses_empty && out == 0) from.refuse("is 0");
}

}  // namespace field_json

/// An object by kFields, a word by kWords; other values as they are.
template <class Json, class T>
Json make_json(const T& value) {
  if constexpr (kHasFields<T>) {
    auto out = Json::object();
    for_each_field<T>([&](const auto& field) { field_json::write(out, value, field); });
    kAfterWrite<T>(out, value);
    return out;
  } else if constexpr (kHasWords<T>) {
    return word_of(value);
  } else {
    return field_json::convert<Json>(value);
  }
}

/// The reverse. Fields that are missing keep what `out` has. Throws Error(bad_input) that names the key.
template <class T>
void read_json(T& out, const JsonValue& from, const InFile& rule) {
  if constexpr (kHasFields<T>) {
    from.require_object();
    if (from.file().edited) field_json::refuse_others<T>(from);
    for_each_field<T>([&](const auto& field) { field_json::read(out, from, field); });
    kAfterRead<T>(out, from);
  } else if constexpr (kHasWords<T>) {
    const auto word = from.read_text();
    const auto value = find_word<T>(word);
    if (!value) from.refuse(refuse_word<T>(word));
    out = *value;
  } else {
    field_json::parse(out, from, rule);
  }
}

}  // namespace spillway
