// Documents of JSON with one value changed, for tests of their readers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::testing {

/// A value of a document under a key of an object.
struct JsonKey {
  nlohmann::json::json_pointer at;
  std::string name;  ///< as messages have it: "gpus[0].links[1].node"
  std::string key;   ///< the last of these keys
};

/// All keys of the objects in a document.
inline void list_keys(const nlohmann::json& document, const JsonKey& under, std::vector<JsonKey>& out) {
  const auto& here = document.at(under.at);
  for (std::size_t i = 0; here.is_array() && i < here.size(); ++i) {
    list_keys(document, {under.at / i, under.name + "[" + std::to_string(i) + "]", under.key}, out);
  }
  if (!here.is_object()) return;
  for (const auto& [key, value] : here.items()) {
    out.push_back({under.at / key, under.name + (under.name.empty() ? "" : ".") + key, key});
    list_keys(document, JsonKey(out.back()), out);
  }
}
inline std::vector<JsonKey> list_keys(const nlohmann::json& document) {
  std::vector<JsonKey> out;
  list_keys(document, JsonKey(), out);
  return out;
}

/// The document without a key.
inline nlohmann::json without(nlohmann::json document, const JsonKey& key) {
  document.at(key.at.parent_pointer()).erase(key.key);
  return document;
}
/// The document with a value of another type under the key.
inline nlohmann::json with_wrong_type(nlohmann::json document, const JsonKey& key) {
  auto& value = document.at(key.at);
  value = value.is_object() ? nlohmann::json(7) : nlohmann::json::object();
  return document;
}

}  // namespace spillway::testing
