#include "spillway/machine/profile_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/machine/profile_fields.h"
#include "spillway/sys/file.h"

namespace spillway {
namespace {

/// Refuses the second of two entries that share what `of` says of them.
template <class Entry, class Of>
void refuse_duplicates(const JsonValue& from, const char* key, const std::vector<Entry>& entries, const char* field,
                       const Of& of, const char* why) {
  std::set<std::decay_t<std::invoke_result_t<Of, const Entry&>>> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (seen.insert(of(entries[i])).second) continue;
    const auto entry = from.at(key).at(i);
    (*field == '\0' ? entry : entry.at(field)).refuse(why);
  }
}

void refuse_all_duplicates(const machine::Profile& profile, const JsonValue& from) {
  const auto name = [](const auto& of) { return of.name; };
  refuse_duplicates(
      from, "nodes", profile.nodes, "id", [](const auto& node) { return node.id; }, "is the id of an earlier node");
  refuse_duplicates(from, "gpus", profile.gpus, "name", name, "is the name of an earlier GPU");
  refuse_duplicates(from, "paths", profile.paths, "name", name, "is the name of an earlier path");
  const auto pair = [](const auto& access) { return std::pair(access.cpus, access.memory); };
  refuse_duplicates(from, "access", profile.access, "", pair, "is of an earlier pair");
  const auto dtype = [](const auto& of) { return of.dtype; };
  refuse_duplicates(from, "compute", profile.compute, "dtype", dtype, "is that of an earlier entry");
}

void check_together(const machine::Profile& profile, const JsonValue& from) {
  Bytes dram = 0;
  for (const auto& node : profile.nodes) dram += node.kind == machine::MemoryKind::cxl ? 0 : node.capacity;
  if (profile.dram_available > profile.dram_total) from.at("dram_available").refuse("is more than dram_total");
  if (from.has("machines") && profile.machines == 0) from.at("machines").refuse("is 0; it counts this machine, too");
  if (profile.machines > 1 && profile.network <= 0) {
    from.at("machines").refuse(text("is ", profile.machines, ", and network does not say what goes between them"));
  }
  if (!profile.nodes.empty() && dram == 0) from.at("nodes").refuse("has no DRAM");
  if (dram > profile.dram_total) from.at("nodes").refuse("has more DRAM than dram_total");
}

}  // namespace

template <>
inline constexpr auto kAfterRead<machine::NodeProfile> = [](machine::NodeProfile& out, const JsonValue& from) {
  if (out.available > out.capacity) from.at("available").refuse("is more than capacity");
};
template <>
inline constexpr auto kAfterRead<machine::Saturation> = [](machine::Saturation& out, const JsonValue& from) {
  if (out.most < out.thread) from.at("most").refuse("is less than what one thread reaches");
};
template <>
inline constexpr auto kAfterRead<machine::ComputeProfile> = [](machine::ComputeProfile& out, const JsonValue& from) {
  constexpr std::array kTypes = {"bf16", "fp16", "fp32"};
  if (std::ranges::find(kTypes, out.dtype) == kTypes.end()) {
    from.at("dtype").refuse(text("is ", out.dtype, "; known: bf16, fp16, fp32"));
  }
};
template <>
inline constexpr auto kAfterRead<machine::GpuProfile> = [](machine::GpuProfile& out, const JsonValue& from) {
  if (out.reserved >= out.memory) from.at(out.memory == 0 ? "memory" : "reserved").refuse("leaves no memory");
  refuse_duplicates(
      from, "links", out.links, "node", [](const auto& link) { return link.node; }, "is that of an earlier link");
};
template <>
inline constexpr auto kAfterRead<machine::Profile> = [](machine::Profile& out, const JsonValue& from) {
  refuse_all_duplicates(out, from);
  check_together(out, from);
};

}  // namespace spillway

namespace spillway::machine {
namespace {

constexpr const char* kFormatKey = "spillway_profile";
constexpr int kFormat = 2;
constexpr int kOldest = 1;  ///< read, too: no nodes, no GPUs
constexpr double kMostProfileBytes = 1 << 20;

nlohmann::json parse(std::string_view words, const std::string& source) {
  try {
    return nlohmann::json::parse(words);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_input, text(source, ": not JSON: ", error.what()), 0, source);
  }
}

}  // namespace

std::string to_json(const Profile& profile) {
  nlohmann::ordered_json out = {{kFormatKey, kFormat}};
  out.update(make_json<nlohmann::ordered_json>(profile));
  return out.dump(2) + "\n";
}

Profile from_json(std::string_view words, const std::string& source) {
  auto json = parse(words, source);
  const JsonFile file{.name = "profile", .source = source, .edited = true};
  const JsonValue from(json, file);
  from.require_object();
  const auto format = from.at(kFormatKey);
  if (const auto number = format.read_number<std::uint64_t>(kMostRate); number < kOldest || number > kFormat) {
    format.refuse(text("is ", number, "; this build reads formats ", kOldest, " to ", kFormat));
  }
  json.erase(kFormatKey);
  Profile out;
  read_json(out, from);
  return out;
}

void save_profile(const Profile& profile, const std::filesystem::path& path) {
  const std::string words = to_json(profile);
  std::filesystem::path draft = path;
  draft += ".new";
  std::error_code failure;
  std::filesystem::remove(draft, failure);
  {
    const sys::File file(draft, {.write = true, .create = true, .mode = 0666});
    file.write(std::as_bytes(std::span(words)), 0);
    file.sync();
  }
  std::filesystem::rename(draft, path, failure);
  if (!failure) return sys::sync_directory(path.has_parent_path() ? path.parent_path() : ".");
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
