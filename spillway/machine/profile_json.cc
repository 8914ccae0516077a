#include "spillway/machine/profile_json.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/sys/file.h"

namespace spillway::machine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormatKey = "spillway_profile";
constexpr int kFormat = 1;
constexpr double kMostCores = 1 << 20;
constexpr double kMostBytes = 1e18;
constexpr double kMostRate = 1e20;  ///< of bytes, elements or operations a second
constexpr double kMostProfileBytes = 1 << 20;

/// One object of the file, with what its errors are called by.
class Object {
 public:
  Object(const Json& json, std::string source, std::string prefix)
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
  [[nodiscard]] const Json& list(const char* key) const {
    if (!at(key).is_array()) refuse(key, "is not a list");
    return at(key);
  }
  void refuse_others(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) refuse(key, "is not a key of a profile");
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

Json json_of(const PathProfile& path) {
  return {{"name", path.name},
          {"read_bytes_per_second", path.read_bytes_per_second},
          {"write_bytes_per_second", path.write_bytes_per_second},
          {"mixed_bytes_per_second", path.mixed_bytes_per_second},
          {"cores_at_full_speed", path.cores_at_full_speed}};
}

PathProfile path_from(const Object& object) {
  object.refuse_others(
      {"name", "read_bytes_per_second", "write_bytes_per_second", "mixed_bytes_per_second", "cores_at_full_speed"});
  return {object.word("name"), object.number("read_bytes_per_second", kMostRate),
          object.number("write_bytes_per_second", kMostRate), object.number("mixed_bytes_per_second", kMostRate),
          object.number("cores_at_full_speed", kMostCores)};
}

std::vector<PathProfile> paths_from(const Object& object, const std::string& source) {
  std::vector<PathProfile> paths;
  std::set<std::string> names;
  for (const Json& entry : object.list("paths")) {
    const std::string prefix = text("paths[", paths.size(), "]");
    paths.push_back(path_from(Object(entry, source, prefix)));
    if (!names.insert(paths.back().name).second) object.refuse(prefix + ".name", "is the name of an earlier path");
  }
  return paths;
}

Json parsed(std::string_view words, const std::string& source) {
  try {
    return Json::parse(words);
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::bad_input, text(source, ": not JSON: ", error.what()), 0, source);
  }
}

}  // namespace

std::string to_json(const Profile& profile) {
  Json paths = Json::array();
  for (const PathProfile& path : profile.paths) paths.push_back(json_of(path));
  const Json out = {{kFormatKey, kFormat},
                    {"cores", profile.cores},
                    {"dram_total", profile.dram_total},
                    {"dram_available", profile.dram_available},
                    {"paths", paths},
                    {"update_elements_per_second", profile.update_elements_per_second},
                    {"copy_bytes_per_second", profile.copy_bytes_per_second},
                    {"compute_flops_per_second", profile.compute_flops_per_second}};
  return out.dump(2) + "\n";
}

Profile from_json(std::string_view words, const std::string& source) {
  const Json json = parsed(words, source);
  const Object object(json, source, "");
  if (const auto format = object.whole(kFormatKey, kMostRate); format != kFormat) {
    object.refuse(kFormatKey, text("is ", format, "; this build reads format ", kFormat));
  }
  object.refuse_others({kFormatKey, "cores", "dram_total", "dram_available", "paths", "update_elements_per_second",
                        "copy_bytes_per_second", "compute_flops_per_second"});
  Profile out;
  out.cores = static_cast<unsigned>(object.whole("cores", kMostCores));
  out.dram_total = object.whole("dram_total", kMostBytes);
  out.dram_available = object.whole("dram_available", kMostBytes);
  out.paths = paths_from(object, source);
  out.update_elements_per_second = object.number("update_elements_per_second", kMostRate);
  out.copy_bytes_per_second = object.number("copy_bytes_per_second", kMostRate);
  out.compute_flops_per_second = object.number("compute_flops_per_second", kMostRate);
  if (out.cores == 0) object.refuse("cores", "is 0");
  if (out.dram_total == 0) object.refuse("dram_total", "is 0");
  if (out.dram_available > out.dram_total) object.refuse("dram_available", "is more than dram_total");
  return out;
}

void save_profile(const Profile& profile, const std::filesystem::path& path) {
  const std::string words = to_json(profile);
  std::filesystem::path draft = path;
  draft += ".new";
  std::error_code failure;
  std::filesystem::remove(draft, failure);
  {
    const sys::File file(draft, {.write = true, .create = true});
    file.write(std::as_bytes(std::span(words)), 0);
    file.sync();
  }
  std::filesystem::rename(draft, path, failure);
  if (!failure) return;
  std::error_code ignored;
  std::filesystem::remove(draft, ignored);
  throw Error(ErrorCode::bad_input, text("cannot write the profile ", path.string(), ": ", failure.message()),
              failure.value(), path.string());
}

Profile load_profile(const std::filesystem::path& path) {
  const sys::File file(path);
  if (!file.is_regular() || static_cast<double>(file.size()) > kMostProfileBytes) {
    throw Error(ErrorCode::bad_input, text(path.string(), " is not a profile"), 0, path.string());
  }
  std::string words(file.size(), '\0');
  file.read(std::as_writable_bytes(std::span(words)), 0);
  return from_json(words, path.string());
}

}  // namespace spillway::machine
