// One object of a profile's file, read with errors that name its keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "spillway/base/error.h"

namespace spillway::machine {

using Json = nlohmann::ordered_json;

inline constexpr double kMostCores = 1 << 20;
inline constexpr double kMostBytes = 1e18;
inline constexpr double kMostRate = 1e20;      ///< of bytes, elements or operations a second
inline constexpr double kMostTransfer = 1e14;  ///< bytes a second of one link or node

/// One object of the file, with what its errors are called by.
class JsonObject {
 public:
  JsonObject(const Json& json, std::string source, std::string prefix)
      : json_(json), source_(std::move(source)), prefix_(std::move(prefix)) {
    if (!json_.is_object()) refuse("", "is not an object");
  }

  /// A number from 0 to `most`.
  [[nodiscard]] double number(const char* key, double most) const {
    const Json& value = at(key);
    if (!value.is_number()) refuse(key, "is not a number");
    const double number = value.get<double>();
    if (!(number >= 0) || number > most) refuse(key, text("is ", value.dump(), "; it must be 0 to ", most));
    return number;
  }
  [[nodiscard]] std::uint64_t whole(const char* key, double most) const {
    const double value = number(key, most);
    if (!at(key).is_number_integer() && value != std::floor(value)) refuse(key, "is not a whole number");
    return at(key).is_number_integer() ? at(key).get<std::uint64_t>() : static_cast<std::uint64_t>(value);
  }
  [[nodiscard]] std::string word(const char* key) const {
    if (!at(key).is_string() || at(key).get<std::string>().empty()) refuse(key, "is not a name");
    return at(key).get<std::string>();
  }
  [[nodiscard]] bool flag(const char* key) const {
    if (!at(key).is_boolean()) refuse(key, "is neither true nor false");
    return at(key).get<bool>();
  }
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  /// A number() that is above 0.
  [[nodiscard]] double positive(const char* key, double most) const {
    const double value = number(key, most);
    if (value == 0) refuse(key, "is 0");
    return value;
  }
  /// A number that may be left out.
  [[nodiscard]] double optional(const char* key, double most) const { return has(key) ? number(key, most) : 0; }
  /// An object in it.
  [[nodiscard]] JsonObject part(const char* key) const {
    return {at(key), source_, text(prefix_, prefix_.empty() ? "" : ".", key)};
  }
  /// An object in a list of it.
  [[nodiscard]] JsonObject entry(const Json& json, const char* key, std::size_t index) const {
    return {json, source_, text(prefix_, prefix_.empty() ? "" : ".", key, "[", index, "]")};
  }
  [[nodiscard]] const Json& list(const char* key) const {
    if (!at(key).is_array()) refuse(key, "is not a list");
    return at(key);
  }
  void refuse_others(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end())
        refuse(key, "is not a key of a profile");
    }
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    const std::string name = prefix_ + (prefix_.empty() || key.empty() ? "" : ".") + key;
    throw Error(ErrorCode::bad_input, text(source_, ": ", name.empty() ? "the profile" : name, " ", why), 0, source_);
  }

 private:
  [[nodiscard]] const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) refuse(key, "is missing");
    return *found;
  }

  const Json& json_;
  std::string source_;
  std::string prefix_;
};

/// The entries of a list that may be missing.
template <class From>
auto list_from(const JsonObject& object, const char* key, const From& from) {
  std::vector<std::invoke_result_t<From, const JsonObject&>> out;
  if (!object.has(key)) return out;
  for (const Json& entry : object.list(key)) out.push_back(from(object.entry(entry, key, out.size())));
  return out;
}

/// What was not measured is left out.
template <class Number>
void put(Json& out, const char* key, Number value) {
  if (value > 0) out[key] = value;
}

}  // namespace spillway::machine
