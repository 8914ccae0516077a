#include "spillway/machine/profile_json.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/sys/file.h"

namespace spillway::machine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormatKey = "spillway_profile";
constexpr const char* kUpdateAll = "update_elements_per_second_all_cores";
constexpr const char* kUpdateBeside = "update_elements_per_second_beside";
constexpr const char* kShareBeside = "compute_share_beside_update";
constexpr int kFormat = 2;
constexpr int kOldest = 1;  ///< read, too: no nodes, no GPUs
constexpr double kMostCores = 1 << 20;
constexpr double kMostBytes = 1e18;
constexpr double kMostRate = 1e20;      ///< of bytes, elements or operations a second
constexpr double kMostTransfer = 1e14;  ///< bytes a second of one link or node
constexpr double kMostDistance = 255;
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
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  /// As number(), and above 0.
  [[nodiscard]] double positive(const char* key, double most) const {
    const double value = number(key, most);
    if (value == 0) refuse(key, "is 0");
    return value;
  }
  /// A number that may be left out.
  [[nodiscard]] double optional(const char* key, double most) const { return has(key) ? number(key, most) : 0; }
  /// An object in it.
  [[nodiscard]] Object part(const char* key) const {
    return {at(key), source_, text(prefix_, prefix_.empty() ? "" : ".", key)};
  }
  /// An object in a list of it.
  [[nodiscard]] Object entry(const Json& json, const char* key, std::size_t index) const {
    return {json, source_, text(prefix_, prefix_.empty() ? "" : ".", key, "[", index, "]")};
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
  Json out = {{"name", path.name},
              {"read_bytes_per_second", path.read_bytes_per_second},
              {"write_bytes_per_second", path.write_bytes_per_second},
              {"mixed_bytes_per_second", path.mixed_bytes_per_second},
              {"cores_at_full_speed", path.cores_at_full_speed}};
  if (path.capacity > 0) out["capacity"] = path.capacity;
  return out;
}

/// What was not measured is left out.
template <class Number>
void put(Json& out, const char* key, Number value) {
  if (value > 0) out[key] = value;
}

Json json_of(const NodeProfile& node) {
  Json out = {{"id", node.id},
              {"kind", node.cxl ? "cxl" : "dram"},
              {"capacity", node.capacity},
              {"update_elements_per_second", node.update_elements_per_second},
              {"to_gpus_bytes_per_second", node.to_gpus_bytes_per_second},
              {"from_gpus_bytes_per_second", node.from_gpus_bytes_per_second}};
  put(out, "available", node.available);
  if (!node.cpus.empty()) out["cpus"] = node.cpus;
  put(out, "read_bytes_per_second", node.read_bytes_per_second);
  put(out, "write_bytes_per_second", node.write_bytes_per_second);
  put(out, "copy_bytes_per_second", node.copy_bytes_per_second);
  put(out, "update_elements_per_second_thread", node.update_elements_per_second_thread);
  put(out, "update_threads", node.update_threads);
  put(out, "tier", node.tier);
  put(out, "promised_read_bytes_per_second", node.promised_read_bytes_per_second);
  put(out, "promised_write_bytes_per_second", node.promised_write_bytes_per_second);
  put(out, "promised_latency_seconds", node.promised_latency_seconds);
  return out;
}

Json json_of(const Saturation& rate) {
  return {{"thread", rate.thread}, {"most", rate.most}, {"threads", rate.threads}};
}

Json json_of(const NodeAccess& access) {
  return {{"cpus", access.cpus},
          {"memory", access.memory},
          {"distance", access.distance},
          {"read", json_of(access.read)},
          {"write", json_of(access.write)},
          {"copy", json_of(access.copy)},
          {"update", json_of(access.update)}};
}

Json json_of(const LayerProfile& layer) {
  return {{"hidden", layer.hidden},
          {"intermediate", layer.intermediate},
          {"tokens", layer.tokens},
          {"flops_per_second", layer.flops_per_second},
          {"fp32_flops_per_second", layer.fp32_flops_per_second}};
}

Json json_of(const ProductRate& rate) {
  return {{"tokens", rate.tokens},
          {"inner", rate.inner},
          {"outer", rate.outer},
          {"forward_flops_per_second", rate.forward_flops_per_second},
          {"input_flops_per_second", rate.input_flops_per_second},
          {"weight_flops_per_second", rate.weight_flops_per_second}};
}

Json json_of(const AttentionRate& rate) {
  return {{"tokens", rate.tokens},
          {"forward_flops_per_second", rate.forward_flops_per_second},
          {"backward_flops_per_second", rate.backward_flops_per_second}};
}

Json json_of(const LinkProfile& link) {
  return {{"node", link.node},
          {"to_gpu_bytes_per_second", link.to_gpu_bytes_per_second},
          {"from_gpu_bytes_per_second", link.from_gpu_bytes_per_second},
          {"to_gpu_bytes_per_second_together", link.to_gpu_bytes_per_second_together},
          {"from_gpu_bytes_per_second_together", link.from_gpu_bytes_per_second_together}};
}

Json json_of(const GpuProfile& gpu) {
  Json out = {{"name", gpu.name},
              {"memory", gpu.memory},
              {"reserved", gpu.reserved},
              {"flops_per_second", gpu.flops_per_second},
              {"update_elements_per_second", gpu.update_elements_per_second},
              {"to_gpu_bytes_per_second", gpu.to_gpu_bytes_per_second},
              {"from_gpu_bytes_per_second", gpu.from_gpu_bytes_per_second},
              {"peer_bytes_per_second", gpu.peer_bytes_per_second}};
  put(out, "elementwise_bytes_per_second", gpu.elementwise_bytes_per_second);
  for (const auto& link : gpu.links) out["links"].push_back(json_of(link));
  return out;
}

Json json_of(const ComputeProfile& compute);

template <class Entry>
Json list_of(const std::vector<Entry>& entries) {
  Json out = Json::array();
  for (const auto& entry : entries) out.push_back(json_of(entry));
  return out;
}

Json json_of(const ComputeProfile& compute) {
  return {{"dtype", compute.dtype},
          {"products", list_of(compute.products)},
          {"attention", list_of(compute.attention)},
          {"elementwise_bytes_per_second", compute.elementwise_bytes_per_second}};
}

PathProfile path_from(const Object& object) {
  object.refuse_others({"name", "read_bytes_per_second", "write_bytes_per_second", "mixed_bytes_per_second",
                        "cores_at_full_speed", "capacity"});
  return {object.word("name"),
          object.number("read_bytes_per_second", kMostRate),
          object.number("write_bytes_per_second", kMostRate),
          object.number("mixed_bytes_per_second", kMostRate),
          object.number("cores_at_full_speed", kMostCores),
          object.has("capacity") ? object.whole("capacity", kMostBytes) : 0};
}

/// What only a node has that was measured.
void take_measured(NodeProfile& out, const Object& object) {
  if (object.has("available")) out.available = object.whole("available", kMostBytes);
  if (out.available > out.capacity) object.refuse("available", "is more than capacity");
  if (object.has("cpus")) out.cpus = object.word("cpus");
  out.read_bytes_per_second = object.optional("read_bytes_per_second", kMostTransfer);
  out.write_bytes_per_second = object.optional("write_bytes_per_second", kMostTransfer);
  out.copy_bytes_per_second = object.optional("copy_bytes_per_second", kMostTransfer);
  out.update_elements_per_second_thread = object.optional("update_elements_per_second_thread", kMostRate);
  if (object.has("update_threads"))
    out.update_threads = static_cast<unsigned>(object.whole("update_threads", kMostCores));
  if (object.has("tier")) out.tier = static_cast<int>(object.whole("tier", kMostCores));
  out.promised_read_bytes_per_second = object.optional("promised_read_bytes_per_second", kMostTransfer);
  out.promised_write_bytes_per_second = object.optional("promised_write_bytes_per_second", kMostTransfer);
  out.promised_latency_seconds = object.optional("promised_latency_seconds", 1);
}

NodeProfile node_from(const Object& object) {
  object.refuse_others({"id", "kind", "capacity", "update_elements_per_second", "to_gpus_bytes_per_second",
                        "from_gpus_bytes_per_second", "available", "cpus", "read_bytes_per_second",
                        "write_bytes_per_second", "copy_bytes_per_second", "update_elements_per_second_thread",
                        "update_threads", "tier", "promised_read_bytes_per_second", "promised_write_bytes_per_second",
                        "promised_latency_seconds"});
  NodeProfile out;
  out.id = static_cast<unsigned>(object.whole("id", kMostCores));
  const auto kind = object.word("kind");
  if (kind != "dram" && kind != "cxl") object.refuse("kind", text("is ", kind, "; known: dram, cxl"));
  out.cxl = kind == "cxl";
  out.capacity = object.whole("capacity", kMostBytes);
  if (out.capacity == 0) object.refuse("capacity", "is 0");
  out.update_elements_per_second = object.number("update_elements_per_second", kMostRate);
  out.to_gpus_bytes_per_second = object.optional("to_gpus_bytes_per_second", kMostTransfer);
  out.from_gpus_bytes_per_second = object.optional("from_gpus_bytes_per_second", kMostTransfer);
  take_measured(out, object);
  return out;
}

Saturation saturation_from(const Object& object) {
  object.refuse_others({"thread", "most", "threads"});
  const Saturation out{object.number("thread", kMostRate), object.number("most", kMostRate),
                       static_cast<unsigned>(object.whole("threads", kMostCores))};
  if (out.most < out.thread) object.refuse("most", "is less than what one thread reaches");
  return out;
}

NodeAccess access_from(const Object& object) {
  object.refuse_others({"cpus", "memory", "distance", "read", "write", "copy", "update"});
  const auto rate = [&](const char* key) { return saturation_from(object.part(key)); };
  return {static_cast<unsigned>(object.whole("cpus", kMostCores)),
          static_cast<unsigned>(object.whole("memory", kMostCores)),
          static_cast<int>(object.whole("distance", kMostDistance)),
          rate("read"),
          rate("write"),
          rate("copy"),
          rate("update")};
}

LayerProfile layer_from(const Object& object) {
  object.refuse_others({"hidden", "intermediate", "tokens", "flops_per_second", "fp32_flops_per_second"});
  return {object.whole("hidden", kMostCores), object.whole("intermediate", kMostCores),
          object.whole("tokens", kMostBytes), object.number("flops_per_second", kMostRate),
          object.number("fp32_flops_per_second", kMostRate)};
}

ProductRate product_from(const Object& object) {
  object.refuse_others(
      {"tokens", "inner", "outer", "forward_flops_per_second", "input_flops_per_second", "weight_flops_per_second"});
  const auto size = [&](const char* key) { return static_cast<std::uint64_t>(object.positive(key, kMostBytes)); };
  return {size("tokens"),
          size("inner"),
          size("outer"),
          object.positive("forward_flops_per_second", kMostRate),
          object.positive("input_flops_per_second", kMostRate),
          object.positive("weight_flops_per_second", kMostRate)};
}

AttentionRate attention_from(const Object& object) {
  object.refuse_others({"tokens", "forward_flops_per_second", "backward_flops_per_second"});
  return {static_cast<std::uint64_t>(object.positive("tokens", kMostBytes)),
          object.positive("forward_flops_per_second", kMostRate),
          object.positive("backward_flops_per_second", kMostRate)};
}

/// The entries of a list that may be missing.
template <class From>
auto list_from(const Object& object, const char* key, const From& from) {
  std::vector<std::invoke_result_t<From, const Object&>> out;
  if (!object.has(key)) return out;
  for (const Json& entry : object.list(key)) out.push_back(from(object.entry(entry, key, out.size())));
  return out;
}

ComputeProfile compute_from(const Object& object) {
  object.refuse_others({"dtype", "products", "attention", "elementwise_bytes_per_second"});
  ComputeProfile out;
  out.dtype = object.word("dtype");
  if (out.dtype != "bf16" && out.dtype != "fp16" && out.dtype != "fp32") {
    object.refuse("dtype", text("is ", out.dtype, "; known: bf16, fp16, fp32"));
  }
  out.products = list_from(object, "products", product_from);
  if (out.products.empty()) object.refuse("products", "is empty");
  out.attention = list_from(object, "attention", attention_from);
  out.elementwise_bytes_per_second = object.optional("elementwise_bytes_per_second", kMostTransfer);
  return out;
}

/// Refuses the second of two entries that share what `of` says of them.
template <class Entry, class Of>
void refuse_twins(const Object& object, const char* key, const std::vector<Entry>& entries, const char* field,
                  const Of& of, const char* why) {
  std::set<std::decay_t<std::invoke_result_t<Of, const Entry&>>> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!seen.insert(of(entries[i])).second) object.refuse(text(key, "[", i, "]", field), why);
  }
}

LinkProfile link_from(const Object& object) {
  object.refuse_others({"node", "to_gpu_bytes_per_second", "from_gpu_bytes_per_second",
                        "to_gpu_bytes_per_second_together", "from_gpu_bytes_per_second_together"});
  const auto rate = [&](const char* key) { return object.number(key, kMostTransfer); };
  return {static_cast<unsigned>(object.whole("node", kMostCores)), rate("to_gpu_bytes_per_second"),
          rate("from_gpu_bytes_per_second"), rate("to_gpu_bytes_per_second_together"),
          rate("from_gpu_bytes_per_second_together")};
}

GpuProfile gpu_from(const Object& object) {
  object.refuse_others({"name", "memory", "reserved", "flops_per_second", "elementwise_bytes_per_second",
                        "update_elements_per_second", "to_gpu_bytes_per_second", "from_gpu_bytes_per_second",
                        "peer_bytes_per_second", "links"});
  GpuProfile out;
  out.name = object.word("name");
  out.memory = object.whole("memory", kMostBytes);
  out.reserved = object.has("reserved") ? object.whole("reserved", kMostBytes) : 0;
  if (out.reserved >= out.memory) object.refuse(out.memory == 0 ? "memory" : "reserved", "leaves no memory");
  out.flops_per_second = object.positive("flops_per_second", kMostRate);
  out.elementwise_bytes_per_second = object.optional("elementwise_bytes_per_second", kMostTransfer);
  out.update_elements_per_second = object.optional("update_elements_per_second", kMostRate);
  out.to_gpu_bytes_per_second = object.positive("to_gpu_bytes_per_second", kMostTransfer);
  out.from_gpu_bytes_per_second = object.positive("from_gpu_bytes_per_second", kMostTransfer);
  out.peer_bytes_per_second = object.optional("peer_bytes_per_second", kMostTransfer);
  out.links = list_from(object, "links", link_from);
  refuse_twins(
      object, "links", out.links, ".node", [](const auto& link) { return link.node; }, "is that of an earlier link");
  return out;
}

/// Lines of text, or one.
std::vector<std::string> comment_from(const Json& json, const Object& object) {
  const auto found = json.find("comment");
  if (found == json.end()) return {};
  if (found->is_string()) return {found->get<std::string>()};
  std::vector<std::string> out;
  for (const Json& line : object.list("comment")) {
    if (!line.is_string()) object.refuse("comment", "is not text");
    out.push_back(line.get<std::string>());
  }
  return out;
}

/// What entries say of each other.
void check_together(const Profile& profile, const Object& object) {
  Bytes dram = 0;
  for (const auto& node : profile.nodes) dram += node.cxl ? 0 : node.capacity;
  if (!profile.nodes.empty() && dram == 0) object.refuse("nodes", "has no DRAM");
  if (dram > profile.dram_total) object.refuse("nodes", "has more DRAM than dram_total");
}

void refuse_all_twins(const Object& object, const Profile& profile) {
  const auto name = [](const auto& of) { return of.name; };
  refuse_twins(
      object, "nodes", profile.nodes, ".id", [](const auto& node) { return node.id; }, "is the id of an earlier node");
  refuse_twins(object, "gpus", profile.gpus, ".name", name, "is the name of an earlier GPU");
  refuse_twins(object, "paths", profile.paths, ".name", name, "is the name of an earlier path");
  const auto pair = [](const auto& access) { return std::pair(access.cpus, access.memory); };
  refuse_twins(object, "access", profile.access, "", pair, "is of an earlier pair");
  const auto dtype = [](const auto& of) { return of.dtype; };
  refuse_twins(object, "compute", profile.compute, ".dtype", dtype, "is that of an earlier entry");
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
  Json out = {{kFormatKey, kFormat}};
  if (!profile.machine.empty()) out["machine"] = profile.machine;
  if (!profile.comment.empty()) out["comment"] = profile.comment;
  out["cores"] = profile.cores;
  out["dram_total"] = profile.dram_total;
  out["dram_available"] = profile.dram_available;
  out["nodes"] = list_of(profile.nodes);
  out["gpus"] = list_of(profile.gpus);
  out["paths"] = list_of(profile.paths);
  out["update_elements_per_second"] = profile.update_elements_per_second;
  if (profile.update_elements_per_second_all_cores > 0) out[kUpdateAll] = profile.update_elements_per_second_all_cores;
  if (profile.update_elements_per_second_beside > 0) out[kUpdateBeside] = profile.update_elements_per_second_beside;
  if (profile.compute_share_beside_update > 0) out[kShareBeside] = profile.compute_share_beside_update;
  out["copy_bytes_per_second"] = profile.copy_bytes_per_second;
  out["compute_flops_per_second"] = profile.compute_flops_per_second;
  if (!profile.access.empty()) out["access"] = list_of(profile.access);
  if (!profile.layers.empty()) out["layers"] = list_of(profile.layers);
  if (!profile.compute.empty()) out["compute"] = list_of(profile.compute);
  return out.dump(2) + "\n";
}

Profile from_json(std::string_view words, const std::string& source) {
  const Json json = parsed(words, source);
  const Object object(json, source, "");
  if (const auto format = object.whole(kFormatKey, kMostRate); format < kOldest || format > kFormat) {
    object.refuse(kFormatKey, text("is ", format, "; this build reads formats ", kOldest, " to ", kFormat));
  }
  object.refuse_others({kFormatKey, "machine", "comment", "cores", "dram_total", "dram_available", "nodes", "gpus",
                        "paths", "update_elements_per_second", kUpdateAll, kUpdateBeside, kShareBeside,
                        "copy_bytes_per_second", "compute_flops_per_second", "access", "layers", "compute"});
  Profile out;
  if (object.has("machine")) out.machine = object.word("machine");
  out.comment = comment_from(json, object);
  out.cores = static_cast<unsigned>(object.whole("cores", kMostCores));
  out.dram_total = object.whole("dram_total", kMostBytes);
  out.dram_available = object.whole("dram_available", kMostBytes);
  out.nodes = list_from(object, "nodes", node_from);
  out.gpus = list_from(object, "gpus", gpu_from);
  static_cast<void>(object.list("paths"));  // may be empty, not missing
  out.paths = list_from(object, "paths", path_from);
  out.update_elements_per_second = object.number("update_elements_per_second", kMostRate);
  out.update_elements_per_second_all_cores = object.optional(kUpdateAll, kMostRate);
  out.update_elements_per_second_beside = object.optional(kUpdateBeside, kMostRate);
  out.compute_share_beside_update = object.optional(kShareBeside, 1);
  out.copy_bytes_per_second = object.number("copy_bytes_per_second", kMostRate);
  out.compute_flops_per_second = object.number("compute_flops_per_second", kMostRate);
  out.access = list_from(object, "access", access_from);
  out.layers = list_from(object, "layers", layer_from);
  out.compute = list_from(object, "compute", compute_from);
  if (out.cores == 0) object.refuse("cores", "is 0");
  if (out.dram_total == 0) object.refuse("dram_total", "is 0");
  if (out.dram_available > out.dram_total) object.refuse("dram_available", "is more than dram_total");
  refuse_all_twins(object, out);
  check_together(out, object);
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
