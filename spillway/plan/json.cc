#include "spillway/plan/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "spillway/base/error.h"
#include "spillway/plan/remote_drives.h"
#include "spillway/plan/requests.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

json parse(const std::string& input, const char* what) {
  auto out = json::parse(input, nullptr, false);
  if (out.is_discarded() || !out.is_object()) throw Error(ErrorCode::bad_input, text(what, " is not a JSON object"));
  return out;
}

template <class T>
T get(const json& object, const char* key, std::optional<T> fallback = std::nullopt) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    if (fallback) return *fallback;
    throw Error(ErrorCode::bad_input, text("the key ", key, " is missing"));
  }
  try {
    return at->get<T>();
  } catch (const json::exception&) {
    throw Error(ErrorCode::bad_input,
                text("the key ", key, " has the value ", at->dump(), ", which has the wrong type"));
  }
}

std::uint64_t count(const json& object, const char* key, std::optional<double> fallback = std::nullopt) {
  const auto value = get<double>(object, key, fallback);
  if (!(value >= 0) || value > 1e18) {
    throw Error(ErrorCode::bad_input, text("the key ", key, " has the value ", value, "; it must be 0 or more"));
  }
  return static_cast<std::uint64_t>(value);
}

/// The form of a tensor; as_run where nothing is said.
state::Form parse_form(const json& tensor) {
  if (get<bool>(tensor, "wide", false)) return state::Form::fp32;
  const auto name = get<std::string>(tensor, "form", "");
  return name.empty() ? state::Form::as_run : state::parse_packed_form(name);
}

void parse_reduced(const json& tensor, const optim::Reduction& reduction, state::TensorSpec& out) {
  const auto reduced = tensor.find(reduction.word);
  if (reduced == tensor.end() || reduced->is_null()) return;
  out.training = state::Training::reduced;
  out.rank = count(*reduced, "rank");
  out.nonzeros = count(*reduced, "nonzeros");
  out.by = &reduction;
}

state::BlockSpec parse_block(const json& object) {
  state::BlockSpec out{get<std::string>(object, "name"), state::parse_role(get<std::string>(object, "role")), {}};
  for (const auto& tensor : get<json>(object, "tensors")) {
    out.tensors.push_back({get<std::string>(tensor, "name"), get<std::vector<std::int64_t>>(tensor, "shape"),
                           get<bool>(tensor, "decay", false),
                           get<bool>(tensor, "frozen", false) ? state::Training::frozen : state::Training::full});
    out.tensors.back().form = parse_form(tensor);
    out.tensors.back().table = get<bool>(tensor, "table", false);
    out.tensors.back().pieces = count(tensor, "pieces", 0);
    for (const auto* reduction : optim::reductions()) parse_reduced(tensor, *reduction, out.tensors.back());
  }
  return out;
}

optim::RefitRule parse_refits(const json& object) {
  optim::RefitRule out;
  out.every = count(object, "check_every", static_cast<double>(out.every));
  out.threshold = get<double>(object, "threshold", out.threshold);
  out.rotate = count(object, "rotate", 0);
  return out;
}

std::optional<double> parse_share(const json& placement, const char* key) {
  const auto share = get<double>(placement, key, -1.0);
  if (share < 0) return std::nullopt;
  if (share > 1) throw Error(ErrorCode::bad_input, text("placement ", key, " is ", share, "; a share is 0 to 1"));
  return share;
}

double rate(const json& object, const char* key, double fallback) {
  const auto value = get<double>(object, key, fallback);
  if (!(value >= 0))
    throw Error(ErrorCode::bad_input, text("the key ", key, " has the value ", value, "; it must be >= 0"));
  return value;
}

std::optional<Durability> parse_durability(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const auto known : {Durability::none, Durability::checkpoint, Durability::step}) {
    if (name == name_of(known)) return known;
  }
  throw Error(ErrorCode::bad_input, text("durability is ", name, "; known: none, checkpoint, step"));
}

Updates parse_updates(const std::string& name) {
  for (const auto known : {Updates::automatic, Updates::deferred, Updates::early}) {
    if (name == name_of(known)) return known;
  }
  throw Error(ErrorCode::bad_input, text("update_schedule is ", name, "; known: auto, deferred, early"));
}

}  // namespace

Description parse_description(const std::string& input) {
  const auto object = parse(input, "the model description");
  Description out;
  const auto computes = get<std::string>(object, "compute_dtype");
  out.type = state::parse_weight_type(get<std::string>(object, "weight_dtype", computes));
  out.compute = state::parse_compute_type(computes);
  out.optimizer = &optim::parse(get<std::string>(object, "optimizer", "adamw"));
  out.format = state::parse_format(get<std::string>(object, "state_format", "exact"));
  out.seed = get<std::uint64_t>(object, "seed", 0);
  for (const auto& block : get<json>(object, "blocks")) out.blocks.push_back(parse_block(block));
  out.tied_head = get<bool>(object, "tied_head", false);
  out.hidden = count(object, "hidden_size");
  out.tokens = count(object, "tokens");
  out.micro_batches = std::max<std::uint64_t>(1, count(object, "micro_batches"));
  out.accumulation = count(object, "accumulation", 0);
  out.virtual_ranks = std::max<std::uint64_t>(1, count(object, "virtual_ranks", 1));
  out.shard_frozen = get<bool>(object, "shard_frozen", false);
  out.world.size = std::max<std::uint64_t>(1, count(object, "world", 1));
  out.world.rank = count(object, "rank", 0);
  const auto machines = std::max<std::uint64_t>(1, count(object, "machines", 1));
  out.world.local = out.world.size % machines == 0 ? out.world.size / machines : 1;
  out.step_tokens = count(object, "step_tokens", 0);
  out.chunk_elements = count(object, "chunk_elements", static_cast<double>(state::kDefaultChunkElements));
  for (const auto* reduction : optim::reductions()) {
    const auto own = get<json>(object, text(reduction->word, "s").c_str(), json::object());
    if (!own.empty()) out.refits = parse_refits(own);
  }
  check_description(out);
  return out;
}

namespace {

json json_of(const state::TensorSpec& tensor) {
  json out{{"name", tensor.name}, {"shape", tensor.shape}, {"decay", tensor.decay}};
  if (tensor.training == state::Training::frozen) out["frozen"] = true;
  const std::string form = state::name_of(tensor.form);
  if (state::is_packed(tensor.form)) out["form"] = form;
  if (!state::is_packed(tensor.form) && !form.empty()) out[form] = true;
  if (tensor.pieces > 0) out["pieces"] = tensor.pieces;
  if (tensor.table) out["table"] = true;
  if (tensor.training == state::Training::reduced) {
    out[tensor.by->word] = {{"rank", tensor.rank}, {"nonzeros", tensor.nonzeros}};
  }
  return out;
}

json json_of(const state::BlockSpec& block) {
  json out{{"name", block.name}, {"role", state::name_of(block.role)}, {"tensors", json::array()}};
  for (const auto& tensor : block.tensors) out["tensors"].push_back(json_of(tensor));
  return out;
}

}  // namespace

std::string to_json(const Description& description) {
  json out{{"compute_dtype", state::name_of(description.computes())},
           {"weight_dtype", state::name_of(description.type)},
           {"optimizer", description.optimizer->name},
           {"state_format", state::name_of(description.format)},
           {"seed", description.seed},
           {"hidden_size", description.hidden},
           {"micro_batches", description.micro_batches},
           {"accumulation", description.accumulation},
           {"virtual_ranks", description.virtual_ranks},
           {"tokens", description.tokens},
           {"tied_head", description.tied_head},
           {"blocks", json::array()}};
  if (description.shard_frozen) out["shard_frozen"] = true;
  for (const auto& block : description.blocks) {
    out["blocks"].push_back(json_of(block));
    for (const auto& tensor : block.tensors) {
      if (tensor.training != state::Training::reduced) continue;
      const auto& refits = description.refits;
      out[text(tensor.by->word, "s")] = {
          {"check_every", refits.every}, {"threshold", refits.threshold}, {"rotate", refits.rotate}};
    }
  }
  if (description.chunk_elements != state::kDefaultChunkElements) out["chunk_elements"] = description.chunk_elements;
  if (!description.is_shared()) return out.dump(2);
  const auto& world = description.world;
  out.update({{"world", world.size},
              {"rank", world.rank},
              {"machines", world.machines()},
              {"step_tokens", description.step_tokens}});
  return out.dump(2);
}

namespace {

/// The node of a drive that is remote.
std::optional<unsigned> node_of(const json& path) {
  if (!get<bool>(path, "far", false) || !path.contains("node")) return std::nullopt;
  return static_cast<unsigned>(count(path, "node"));
}

std::optional<Bytes> endurance_of(const json& path) {
  const auto endurance = count(path, "endurance", 0);
  return endurance > 0 ? std::optional<Bytes>(endurance) : std::nullopt;
}

Spill parse_spill(const std::string& name) {
  if (name == "never") return Spill::never;
  if (name == "auto") return Spill::automatic;
  if (name == "all") return Spill::all;
  throw Error(ErrorCode::bad_input, text("saved_activations: spill is ", name, "; known: never, auto, all"));
}

/// Empty: nobody said.
SavedActivations parse_saved(const json& object) {
  SavedActivations out{.blocks = get<std::vector<std::uint32_t>>(object, "blocks", std::vector<std::uint32_t>{}),
                       .token_bytes = rate(object, "token_bytes", 0),
                       .on_device = get<bool>(object, "on_device", false),
                       .layers = count(object, "layers", 0),
                       .why = get<std::string>(object, "why", ""),
                       .spill = parse_spill(get<std::string>(object, "spill", "never")),
                       .spilled_token_bytes = rate(object, "spilled_token_bytes", 0),
                       .graph_token_bytes = rate(object, "graph_token_bytes", 0)};
  if (const auto keep = object.find("keep"); keep != object.end() && !keep->is_null()) out.keep = count(object, "keep");
  return out;
}

/// Null: nothing is saved.
std::optional<Saving> parse_saving(const json& object) {
  if (object.is_null()) return std::nullopt;
  Saving out{.saves = static_cast<std::uint32_t>(std::min<std::uint64_t>(count(object, "saves"), 1U << 20)),
             .limit = std::nullopt,
             .freed = count(object, "freed", 0),
             .small = count(object, "small", 0),
             .beside = count(object, "beside", 0),
             .model_only = get<bool>(object, "model_only", false),
             .copies = get<bool>(object, "copies", false),
             .adapters = get<bool>(object, "adapters", false),
             .converted = get<bool>(object, "converted", false)};
  if (const auto limit = object.find("limit"); limit != object.end() && !limit->is_null()) {
    out.limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(count(object, "limit"), 1U << 20));
  }
  for (const auto& bytes : get<json>(object, "there", json::array())) out.there.push_back(bytes.get<Bytes>());
  return out;
}

std::vector<FileSystem> parse_systems(const json& list, std::size_t paths) {
  std::vector<FileSystem> out;
  for (const auto& object : list) {
    out.push_back({.name = get<std::string>(object, "name"),
                   .free = count(object, "free"),
                   .paths = get<std::vector<std::size_t>>(object, "paths", std::vector<std::size_t>{}),
                   .output = get<bool>(object, "output", false)});
    for (const auto p : out.back().paths) {
      if (p >= paths) throw Error(ErrorCode::bad_input, text("file system ", out.back().name, " names path ", p));
    }
  }
  return out;
}

/// The tier of host memory that a group is to lie on, by its name; empty: no name is given.
std::optional<std::uint16_t> parse_tier(const json& placement, const char* key, const std::vector<NodeBudget>& nodes) {
  const auto entry = placement.find(key);
  if (entry == placement.end() || !entry->is_string()) return std::nullopt;
  const auto name = entry->get<std::string>();
  std::string known;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].name() == name) return static_cast<std::uint16_t>(n);
    known += text(known.empty() ? "" : ", ", nodes[n].name());
  }
  throw Error(ErrorCode::bad_input,
              text("placement ", key, " is ", name, ", and host memory has ",
                   known.empty() ? std::string("one tier, dram") : text("the tiers ", known),
                   "; name one of them, or add another by --node N=SIZE or --memory_file DIR=SIZE"));
}

PlacementShares parse_placement(const json& object, const std::vector<NodeBudget>& nodes) {
  PlacementShares out{.weight = parse_share(object, "weight"),
                      .state = parse_share(object, "state"),
                      .grad = std::nullopt,
                      .activation = std::nullopt,
                      .grad_on = parse_tier(object, "grad", nodes),
                      .activation_on = parse_tier(object, "activation", nodes)};
  out.grad = out.grad_on ? 1.0 : parse_share(object, "grad");
  out.activation = out.activation_on ? 1.0 : parse_share(object, "activation");
  return out;
}

/// `dram`: the budget of the process.
NodeBudget parse_node(const json& node, Bytes dram) {
  const auto said = get<std::string>(node, "kind", "numa");
  const std::string_view word = said == "fake" ? "numa" : std::string_view(said);
  const auto it = std::ranges::find_if(kNodes, [&](const NodeTraits& each) { return word == each.word; });
  if (it == kNodes.end()) {
    std::string known = "fake";
    for (const auto& each : kNodes) known += text(", ", each.word);
    throw Error(ErrorCode::bad_input, text("a node's kind is ", said, "; known: ", known));
  }
  const auto kind = static_cast<NodeKind>(it - kNodes.begin());
  if (it->is_rest) return {.capacity = dram, .kind = kind};
  return {.id = static_cast<unsigned>(count(node, "id")), .capacity = count(node, "capacity"), .kind = kind};
}

}  // namespace

Budget parse_budget(const std::string& input) {
  const auto object = parse(input, "the settings");
  Budget out;
  out.dram = count(object, "dram_budget");
  out.process = count(object, "process_bytes", 0);
  out.work = count(object, "work_bytes", 0);
  out.keeps_logits = get<bool>(object, "keeps_logits", false);
  out.saved = parse_saved(get<json>(object, "saved_activations", json::object()));
  out.window = count(object, "window", 0);
  out.durability = parse_durability(get<std::string>(object, "durability", ""));
  out.resumes = get<bool>(object, "resumes", false);
  out.updates = parse_updates(get<std::string>(object, "update_schedule", "auto"));
  out.clipping = get<bool>(object, "clipping", true);
  out.speculate = get<bool>(object, "speculative_updates", false);
  out.checkpoints = static_cast<std::uint32_t>(std::min<std::uint64_t>(count(object, "checkpoints", 0), 1U << 20));
  if (const auto device = object.find("device"); device != object.end() && device->contains("memory")) {
    out.device = DeviceTier{.capacity = count(*device, "memory"),
                            .work = count(*device, "work", 0),
                            .in_dram = get<bool>(*device, "in_dram", false),
                            .weight = parse_share(*device, "weight"),
                            .activation = parse_share(*device, "activation"),
                            .state = parse_share(*device, "state"),
                            .device_updated = parse_share(*device, "streamed_state"),
                            .grad = parse_share(*device, "streamed_grad")};
  }
  const auto storage = get<json>(object, "storage", json::array());
  for (std::size_t p = 0; p < storage.size(); ++p) {
    out.paths.push_back({.name = text("path:", p),
                         .capacity = count(storage[p], "capacity"),
                         .remote = get<bool>(storage[p], "far", false),
                         .node = node_of(storage[p]),
                         .endurance = endurance_of(storage[p])});
  }
  out.saving = parse_saving(get<json>(object, "saving", json()));
  out.systems = parse_systems(get<json>(object, "file_systems", json::array()), out.paths.size());
  for (const auto& node : get<json>(object, "nodes", json::array())) {
    out.nodes.push_back(parse_node(node, out.dram));
  }
  out.placement = parse_placement(get<json>(object, "placement", json::object()), out.nodes);
  return out;
}

namespace {

/// Threads of the update lanes: of the cores that only updates use, or else of those that compute leaves to them while
/// it waits, each node has as many as its part of all updates needs; at least one.
void share_threads(Rates& rates) {
  const auto cores = rates.update_cores > 0 ? rates.update_cores : std::max(2U, rates.cores) - 1;
  double needed = 0;
  const auto saturating = [](const NodeRates& node) {
    return node.update > 0 && node.update_thread > 0 ? node.update / node.update_thread : 1.0;
  };
  for (const auto& node : rates.nodes) needed += saturating(node);
  for (auto& node : rates.nodes) {
    node.threads = std::max(1U, static_cast<unsigned>(cores * saturating(node) / needed));
  }
}

/// The rates of the tiers of host memory that the settings name. A device's links are those of NUMA nodes.
std::vector<NodeRates> parse_nodes(const json& object) {
  const auto device = get<json>(object, "device", json::object());
  const auto links = get<json>(device, "links", json::array());
  std::vector<NodeRates> out;
  for (const auto& node : get<json>(object, "nodes", json::array())) {
    out.push_back({.update = rate(node, "update", 0),
                   .update_thread = rate(node, "update_thread", 0),
                   .read = rate(node, "read", 0)});
    const auto budget = parse_node(node, 0);
    for (const auto& link : links) {
      if (!traits(budget.kind).is_numa || count(link, "node") != budget.id) continue;
      out.back().to_device = rate(link, "to_gpu_bytes_per_second_together", 0);
      out.back().from_device = rate(link, "from_gpu_bytes_per_second_together", 0);
    }
  }
  return out;
}

/// Parses the rates of as many of the paths that the settings name as the profile knows.
void parse_paths(Rates& out, const json& object, const machine::Profile& profile) {
  const auto storage = get<json>(object, "storage", json::array());
  std::vector<std::optional<unsigned>> drives;
  out.io_cores = 0;
  for (std::size_t p = 0; p < std::min(profile.paths.size(), storage.size()); ++p) {
    const auto& path = profile.paths[p];
    out.paths.push_back({.read = path.read_bytes_per_second,
                         .write = path.write_bytes_per_second,
                         .mixed = path.mixed_bytes_per_second});
    out.io_cores += path.cores_at_full_speed;
    drives.push_back(node_of(storage[p]));
  }
  if (!object.contains("near")) return;
  const auto near = static_cast<unsigned>(count(object, "near"));
  const auto known = [&](const auto& node) {
    return node && *node != near && crossing(profile, *node, near) > 0 && crossing(profile, near, *node) > 0;
  };
  if (std::ranges::none_of(drives, known)) return;
  out.near_paths = out.paths;
  out.paths = over_the_link(std::move(out.paths), drives, near, profile);
}

}  // namespace

Rates parse_rates(const std::string& input, const machine::Profile& profile) {
  const auto object = parse(input, "the settings");
  const auto seconds = get<json>(object, "seconds", json::object());
  Rates out;
  out.update_cores = static_cast<unsigned>(std::min<std::uint64_t>(count(object, "update_cores", 0), profile.cores));
  out.cores = std::max(1U, profile.cores - out.update_cores);
  out.update = profile.update_elements_per_second;
  out.copy = profile.copy_bytes_per_second;
  out.update_all = profile.update_elements_per_second_all_cores;
  out.update_beside = profile.update_elements_per_second_beside;
  out.compute_beside = profile.compute_share_beside_update;
  out.nodes = parse_nodes(object);
  share_threads(out);
  parse_paths(out, object, profile);
  out.forward = rate(seconds, "forward", 0);
  out.backward = rate(seconds, "backward", 0);
  out.kept_forward = rate(seconds, "kept_forward", out.forward);
  out.kept_backward = rate(seconds, "kept_backward", std::max(0.0, out.backward - out.forward));
  out.head_loss = rate(seconds, "head_loss", 0);
  out.head_gradient = rate(seconds, "head_gradient", 0);
  out.last_forward = rate(seconds, "tail_forward", 0);
  out.last_backward = rate(seconds, "tail_backward", 0);
  out.between = rate(seconds, "between", rate(seconds, "prologue", 0));
  const auto device = get<json>(object, "device", json::object());
  out.to_device = rate(device, "to_device", 0);
  out.from_device = rate(device, "from_device", 0);
  out.copy_latency = rate(device, "latency", 0);
  out.device_update = rate(device, "update", 0);
  out.network = profile.network;
  out.network_inside = rate(object, "network_inside", 0);
  out.network_latency = profile.network_latency;
  return out;
}

}  // namespace spillway::plan
