#include "spillway/state/shards.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "spillway/base/error.h"
#include "spillway/state/file.h"
#include "spillway/state/header.h"

namespace spillway::state {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSuffix = ".safetensors";

std::string read_text(const std::filesystem::path& path) {
  const auto file = File::open(path);
  if (file.size() > kMaxHeader) {
    throw Error(ErrorCode::bad_input, text(path.string(), ": an index of ", human(file.size()), " is too long"), 0,
                path.string());
  }
  std::string json(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(json)));
  return json;
}

/// Refuses an object that has a key twice, which the parser would silently resolve.
class UniqueKeys {
 public:
  explicit UniqueKeys(std::string file) : file_(std::move(file)) {}
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(value.get<std::string>()).second) {
      throw Error(ErrorCode::bad_input, text(file_, ": the key ", value.get<std::string>(), " is there twice"), 0,
                  file_);
    }
    return true;
  }

 private:
  std::string file_;
  std::vector<std::set<std::string>> open_;
};

Json parse(const std::string& json, const std::string& file) {
  try {
    return Json::parse(json, UniqueKeys(file));
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::bad_input, text(file, " is not JSON: ", error.what()), 0, file);
  }
}

bool stays_in_directory(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// Takes `lead` and at least five digits from the front of `rest`; false, and nothing is taken, when they are not
/// there.
bool take_number(std::string_view& rest, std::string_view lead) {
  if (!rest.starts_with(lead)) return false;
  const auto after = rest.substr(lead.size());
  const auto digits = std::min(after.find_first_not_of("0123456789"), after.size());
  if (digits < 5) return false;
  rest = after.substr(digits);
  return true;
}

}  // namespace

std::vector<std::vector<std::size_t>> cut_shards(const std::vector<Bytes>& sizes, Bytes max_shard) {
  std::vector<std::vector<std::size_t>> shards;
  std::vector<std::size_t> open;
  Bytes filled = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > max_shard) {
      shards.push_back({i});
      continue;
    }
    if (filled > max_shard - sizes[i]) {
      shards.push_back(std::move(open));
      open.clear();
      filled = 0;
    }
    open.push_back(i);
    filled += sizes[i];
  }
  if (!open.empty()) shards.push_back(std::move(open));
  return shards;
}

std::string shard_name(const std::string& base, std::size_t number, std::size_t count) {
  if (count == 1) return base + std::string(kSuffix);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", number + 1, count);
  return base + numbers + std::string(kSuffix);
}

bool is_checkpoint_file(const std::string& name, const std::string& base) {
  if (!name.starts_with(base)) return false;
  auto rest = std::string_view(name).substr(base.size());
  if (rest.ends_with(".partial")) rest.remove_suffix(std::string_view(".partial").size());
  if (rest == ".safetensors.index.json") return true;
  const bool numbered = take_number(rest, "-");
  return take_number(rest, "-of-") == numbered && rest == kSuffix;
}

WeightMap read_index(const std::filesystem::path& path) {
  const auto file = path.string();
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::bad_input, text(file, ": ", what), 0, file);
  };
  const auto json = parse(read_text(path), file);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    refuse("there is no weight_map, an object of tensor names and file names");
  }
  WeightMap files;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) refuse(text("the file of tensor ", tensor, " is not a string"));
    const auto name = shard.get<std::string>();
    if (!stays_in_directory(name)) refuse(text("the file of tensor ", tensor, " is not a plain name: '", name, "'"));
    files.emplace(tensor, name);
  }
  if (files.empty()) refuse("the weight_map is empty");
  return files;
}

std::string serialize_index(const WeightMap& files, std::uint64_t parameters, Bytes total) {
  const Json index = {{"metadata", {{"total_parameters", parameters}, {"total_size", total}}}, {"weight_map", files}};
  return index.dump(2, ' ', true) + "\n";
}

}  // namespace spillway::state
