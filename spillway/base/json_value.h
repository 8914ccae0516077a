// A value of a file that is JSON, with the keys that lead to it: errors name them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "spillway/base/error.h"

namespace spillway {

/// A file, and how strictly it is read.
struct JsonFile {
  const char* name = "";    ///< of the whole in messages: "profile"
  std::string source = {};  ///< that messages begin with: a path; empty: they name the key alone
  bool edited = false;      ///< people write it: keys that are not known are refused, and null is a value of wrong type
};

class JsonValue {
 public:
  JsonValue(const nlohmann::json& json, const JsonFile& file, std::string path = {})
      : json_(json), file_(file), path_(std::move(path)) {}

  [[nodiscard]] const nlohmann::json& json() const { return json_; }
  [[nodiscard]] const JsonFile& file() const { return file_; }
  [[nodiscard]] bool has(const std::string& key) const {
    const auto at = json_.find(key);
    return at != json_.end() && (file_.edited || !at->is_null());
  }
  /// The value of a key of an object. A missing one is refused.
  [[nodiscard]] JsonValue at(const std::string& key) const {
    const JsonValue out(json_.contains(key) ? json_.at(key) : json_, file_, text(path_, path_.empty() ? "" : ".", key));
    if (!has(key)) out.refuse("is missing");
    return out;
  }
  /// An entry of a list.
  [[nodiscard]] JsonValue at(std::size_t index) const { return {json_.at(index), file_, text(path_, "[", index, "]")}; }

  void require_object() const {
    if (!json_.is_object()) refuse_type("is not an object");
  }
  void require_list() const {
    if (!json_.is_array()) refuse_type("is not a list");
  }
  [[nodiscard]] std::string read_text() const {
    if (!json_.is_string()) refuse_type("is not a name");
    return json_.get<std::string>();
  }
  [[nodiscard]] bool read_flag() const {
    if (!json_.is_boolean()) refuse_type("is neither true nor false");
    return json_.get<bool>();
  }
  /// A number from 0 to `most`; a whole one, if N is a type of such.
  template <class N>
  [[nodiscard]] N read_number(double most) const {
    if (!json_.is_number()) refuse_type("is not a number");
    const auto number = json_.get<double>();
    if (!(number >= 0) || number > most) refuse_value(text("; it must be 0 to ", most));
    if constexpr (std::is_floating_point_v<N>) {
      return number;
    } else {
      const bool is_integer = json_.is_number_integer();
      if (!is_integer && (number != std::floor(number) || number >= 0x1p64)) refuse_type("is not a whole number");
      const auto whole = is_integer ? json_.get<std::uint64_t>() : static_cast<std::uint64_t>(number);
      if (!std::in_range<N>(whole)) refuse_value(text("; it must be 0 to ", std::numeric_limits<N>::max()));
      return static_cast<N>(whole);
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    const auto subject = path_.empty() ? text("the ", file_.name) : text(file_.source.empty() ? "the key " : "", path_);
    const auto source = file_.source.empty() ? "" : text(file_.source, ": ");
    throw Error(ErrorCode::bad_input, text(source, subject, " ", why), 0, file_.source);
  }

 private:
  [[noreturn]] void refuse_type(const char* why) const {
    refuse(file_.edited ? why : text("has the value ", json_.dump(), ", which has the wrong type"));
  }
  [[noreturn]] void refuse_value(const std::string& why) const {
    refuse(text(file_.edited ? "is " : "has the value ", json_.dump(), why));
  }

  const nlohmann::json& json_;
  const JsonFile& file_;
  std::string path_;
};

}  // namespace spillway
