#include "spillway/machine/profile_json.h"

#include <set>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/machine/compute_json.h"
#include "spillway/sys/file.h"

namespace spillway::machine {
namespace {

constexpr const char* kFormatKey = "spillway_profile";
constexpr const char* kUpdateAll = "update_elements_per_second_all_cores";
constexpr const char* kUpdateBeside = "update_elements_per_second_beside";
constexpr const char* kShareBeside = "compute_share_beside_update";
constexpr const char* kMachines = "machines";
constexpr const char* kNetwork = "network";
constexpr const char* kNetworkLatency = "network_latency";
constexpr int kFormat = 2;
constexpr int kOldest = 1;  ///< read, too: no nodes, no GPUs
constexpr double kMostDistance = 255;
constexpr double kMostProfileBytes = 1 << 20;

Json json_of(const PathProfile& path) {
  Json out = {{"name", path.name},
              {"read_bytes_per_second", path.read_bytes_per_second},
              {"write_bytes_per_second", path.write_bytes_per_second},
              {"mixed_bytes_per_second", path.mixed_bytes_per_second},
              {"cores_at_full_speed", path.cores_at_full_speed}};
  if (path.capacity > 0) out["capacity"] = path.capacity;
  return out;
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
  put(out, "attention_forward_flops_per_second", gpu.attention_forward_flops_per_second);
  put(out, "attention_backward_flops_per_second", gpu.attention_backward_flops_per_second);
  put(out, "call_seconds", gpu.call_seconds);
  if (gpu.shares_dram) out["shares_dram"] = true;
  for (const auto& link : gpu.links) out["links"].push_back(json_of(link));
  return out;
}

template <class Entry>
Json list_of(const std::vector<Entry>& entries) {
  Json out = Json::array();
  for (const auto& entry : entries) out.push_back(json_of(entry));
  return out;
}

PathProfile path_from(const JsonObject& object) {
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
void take_measured(NodeProfile& out, const JsonObject& object) {
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

NodeProfile node_from(const JsonObject& object) {
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

Saturation saturation_from(const JsonObject& object) {
  object.refuse_others({"thread", "most", "threads"});
  const Saturation out{object.number("thread", kMostRate), object.number("most", kMostRate),
                       static_cast<unsigned>(object.whole("threads", kMostCores))};
  if (out.most < out.thread) object.refuse("most", "is less than what one thread reaches");
  return out;
}

NodeAccess access_from(const JsonObject& object) {
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

LayerProfile layer_from(const JsonObject& object) {
  object.refuse_others({"hidden", "intermediate", "tokens", "flops_per_second", "fp32_flops_per_second"});
  return {object.whole("hidden", kMostCores), object.whole("intermediate", kMostCores),
          object.whole("tokens", kMostBytes), object.number("flops_per_second", kMostRate),
          object.number("fp32_flops_per_second", kMostRate)};
}

/// Refuses the second of two entries that share what `of` says of them.
template <class Entry, class Of>
void refuse_duplicates(const JsonObject& object, const char* key, const std::vector<Entry>& entries, const char* field,
                       const Of& of, const char* why) {
  std::set<std::decay_t<std::invoke_result_t<Of, const Entry&>>> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!seen.insert(of(entries[i])).second) object.refuse(text(key, "[", i, "]", field), why);
  }
}

LinkProfile link_from(const JsonObject& object) {
  object.refuse_others({"node", "to_gpu_bytes_per_second", "from_gpu_bytes_per_second",
                        "to_gpu_bytes_per_second_together", "from_gpu_bytes_per_second_together"});
  const auto rate = [&](const char* key) { return object.number(key, kMostTransfer); };
  return {static_cast<unsigned>(object.whole("node", kMostCores)), rate("to_gpu_bytes_per_second"),
          rate("from_gpu_bytes_per_second"), rate("to_gpu_bytes_per_second_together"),
          rate("from_gpu_bytes_per_second_together")};
}

GpuProfile gpu_from(const JsonObject& object) {
  object.refuse_others({"name", "memory", "reserved", "flops_per_second", "elementwise_bytes_per_second",
                        "update_elements_per_second", "to_gpu_bytes_per_second", "from_gpu_bytes_per_second",
                        "peer_bytes_per_second", "links", "attention_forward_flops_per_second",
                        "attention_backward_flops_per_second", "call_seconds", "shares_dram"});
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
  out.attention_forward_flops_per_second = object.optional("attention_forward_flops_per_second", kMostRate);
  out.attention_backward_flops_per_second = object.optional("attention_backward_flops_per_second", kMostRate);
  out.call_seconds = object.optional("call_seconds", 1);
  out.shares_dram = object.has("shares_dram") && object.flag("shares_dram");
  out.links = list_from(object, "links", link_from);
  refuse_duplicates(
      object, "links", out.links, ".node", [](const auto& link) { return link.node; }, "is that of an earlier link");
  return out;
}

/// Lines of text, or one.
std::vector<std::string> comment_from(const Json& json, const JsonObject& object) {
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
void check_together(const Profile& profile, const JsonObject& object) {
  Bytes dram = 0;
  for (const auto& node : profile.nodes) dram += node.cxl ? 0 : node.capacity;
  if (profile.machines > 1 && profile.network <= 0) {
    object.refuse(kMachines, text("is ", profile.machines, ", and ", kNetwork, " does not say what goes between them"));
  }
  if (!profile.nodes.empty() && dram == 0) object.refuse("nodes", "has no DRAM");
  if (dram > profile.dram_total) object.refuse("nodes", "has more DRAM than dram_total");
}

void refuse_all_duplicates(const JsonObject& object, const Profile& profile) {
  const auto name = [](const auto& of) { return of.name; };
  refuse_duplicates(
      object, "nodes", profile.nodes, ".id", [](const auto& node) { return node.id; }, "is the id of an earlier node");
  refuse_duplicates(object, "gpus", profile.gpus, ".name", name, "is the name of an earlier GPU");
  refuse_duplicates(object, "paths", profile.paths, ".name", name, "is the name of an earlier path");
  const auto pair = [](const auto& access) { return std::pair(access.cpus, access.memory); };
  refuse_duplicates(object, "access", profile.access, "", pair, "is of an earlier pair");
  const auto dtype = [](const auto& of) { return of.dtype; };
  refuse_duplicates(object, "compute", profile.compute, ".dtype", dtype, "is that of an earlier entry");
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
  if (profile.machines > 0) out[kMachines] = profile.machines;
  if (profile.network > 0) out[kNetwork] = profile.network;
  if (profile.network_latency > 0) out[kNetworkLatency] = profile.network_latency;
  if (!profile.access.empty()) out["access"] = list_of(profile.access);
  if (!profile.layers.empty()) out["layers"] = list_of(profile.layers);
  if (!profile.compute.empty()) out["compute"] = list_of(profile.compute);
  return out.dump(2) + "\n";
}

Profile from_json(std::string_view words, const std::string& source) {
  const Json json = parsed(words, source);
  const JsonObject object(json, source, "");
  if (const auto format = object.whole(kFormatKey, kMostRate); format < kOldest || format > kFormat) {
    object.refuse(kFormatKey, text("is ", format, "; this build reads formats ", kOldest, " to ", kFormat));
  }
  object.refuse_others({kFormatKey,
                        "machine",
                        "comment",
                        "cores",
                        "dram_total",
                        "dram_available",
                        "nodes",
                        "gpus",
                        "paths",
                        "update_elements_per_second",
                        kUpdateAll,
                        kUpdateBeside,
                        kShareBeside,
                        "copy_bytes_per_second",
                        "compute_flops_per_second",
                        kMachines,
                        kNetwork,
                        kNetworkLatency,
                        "access",
                        "layers",
                        "compute"});
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
  if (object.has(kMachines)) out.machines = static_cast<unsigned>(object.whole(kMachines, kMostCores));
  if (object.has(kMachines) && out.machines == 0) object.refuse(kMachines, "is 0; it counts this machine, too");
  out.network = object.optional(kNetwork, kMostRate);
  out.network_latency = object.optional(kNetworkLatency, 1);
  out.access = list_from(object, "access", access_from);
  out.layers = list_from(object, "layers", layer_from);
  out.compute = list_from(object, "compute", compute_from);
  if (out.cores == 0) object.refuse("cores", "is 0; a machine has 1 or more");
  if (out.dram_total == 0) object.refuse("dram_total", "is 0");
  if (out.dram_available > out.dram_total) object.refuse("dram_available", "is more than dram_total");
  refuse_all_duplicates(object, out);
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
