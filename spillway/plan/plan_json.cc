// plan.json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/device_blocks.h"
#include "spillway/plan/drive_life.h"
#include "spillway/plan/memory_breakdown.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/reduced_share.h"
#include "spillway/plan/remote_drives.h"
#include "spillway/plan/saved_choice.h"
#include "spillway/plan/spill_choice.h"

namespace spillway::plan {
namespace {

/// Bytes on a later node, by class, when it is at its fullest.
std::map<std::string, Bytes> breakdown_on(const Plan& plan, const state::UpdateRule& rule, const state::Layout& layout,
                                          std::size_t node) {
  const TierId here{TierKind::host, static_cast<std::uint16_t>(node)};
  const auto is_at = [&](const TierId& tier) { return tier == here; };
  std::map<std::string, Bytes> out;
  for (Index c = 0; c < layout.chunks().size(); ++c) {
    const auto& chunk = layout.chunks()[c];
    if (is_at(plan.placement[c].weight)) out["weight"] += weight_bytes(rule, chunk);
    if (is_at(plan.placement[c].state)) out["state"] += state_bytes(rule, chunk);
  }
  const auto bytes = bytes_on(plan.schedule, here.node);
  for (const auto& [name, held] : memory_breakdown(plan.schedule, bytes, TierKind::host, here.node)) {
    if (name != "gaps") out[name] += held;
  }
  return out;
}

/// DRAM, or each of its nodes.
void add_memory(nlohmann::json& out, const Plan& plan, const state::UpdateRule& rule, const state::Layout& layout,
                const Budget& budget) {
  const auto first = plan.node_peaks.empty() ? "dram" : budget.nodes[0].name();
  const auto add = [&](const std::string& name, const std::string& tier, Bytes bytes) {
    if (bytes > 0) out["bytes"].push_back({{"class", name}, {"tier", tier}, {"bytes", bytes}});
  };
  out["bytes"].push_back({{"class", "interpreter and libraries"}, {"tier", first}, {"bytes", budget.process}});
  out["bytes"].push_back({{"class", "working set"}, {"tier", first}, {"bytes", budget.work}});
  add("engine", first, kEngineBytes);
  add("logits", first, plan.kept_logits);
  if (!budget.saved.on_device) add("saved activations", first, plan.saved);
  if (layout.reduction() != nullptr) add(layout.reduction()->auxiliary, first, plan.auxiliary);
  add("update workspace", first, plan.update_workspace);
  if (budget.device && budget.device->in_dram) add("simulated device", first, plan.device_arena);
  auto here = plan.dram_breakdown;
  for (std::size_t n = 1; n < plan.node_peaks.size(); ++n) {
    auto gaps = plan.node_peaks[n];
    for (const auto& [name, bytes] : breakdown_on(plan, rule, layout, n)) {
      add(name, budget.nodes[n].name(), bytes);
      here[name] -= bytes;
      gaps -= bytes;
    }
    add("gaps", budget.nodes[n].name(), gaps);
    here["gaps"] -= std::min(here["gaps"], gaps);
  }
  for (const auto& [name, bytes] : here) add(name, first, bytes);
  if (plan.node_peaks.empty()) {
    out["tiers"].push_back({{"name", first}, {"capacity", budget.dram}, {"planned_peak", plan.dram_peak}});
  }
  for (std::size_t n = 0; n < plan.node_peaks.size(); ++n) {
    const auto& node = budget.nodes[n];
    const auto capacity = traits(node.kind).is_rest ? budget.dram : node.capacity;
    out["tiers"].push_back({{"name", node.name()}, {"capacity", capacity}, {"planned_peak", plan.node_peaks[n]}});
  }
}

/// The memory of a device of its own.
void add_device_memory(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  if (!budget.device) return;
  const auto add = [&](const std::string& name, Bytes bytes) {
    if (bytes > 0) out["bytes"].push_back({{"class", name}, {"tier", "device"}, {"bytes", bytes}});
  };
  add("working set", budget.device->work);
  if (budget.saved.on_device) add("saved activations", plan.saved);
  for (const auto& [name, bytes] : plan.device_breakdown) add(name, bytes);
  out["tiers"].push_back(
      {{"name", "device"}, {"capacity", budget.device->capacity}, {"planned_peak", plan.device_peak}});
  out["device_bytes_per_step"] = {{"to_device", plan.to_device_per_step}, {"from_device", plan.from_device_per_step}};
}

/// "dram", or the tier of host memory.
std::string memory_name(const Budget& budget, std::size_t node) {
  return budget.has_nodes() ? budget.nodes[node].name() : "dram";
}

/// How many boundary activations lie where from forward to backward.
void add_boundaries(nlohmann::json& out, const Plan& plan, const state::Layout& layout, const Budget& budget) {
  std::map<std::string, std::size_t> counts;
  for (auto i = first_backward(layout); i < plan.placement.boundaries.size(); ++i) {
    const auto& it = plan.placement.boundaries[i];
    ++counts[it.has_device_copy() ? "device" : !it.in_memory() ? "paths" : memory_name(budget, it.node)];
  }
  out["boundary_activations"] = std::move(counts);
}

/// Bytes and seconds of spilling.
void add_spilling(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  const auto& cost = plan.spill_cost;
  Bytes bytes = 0;  // of the pass that leaves them, and of the one that finds them
  for (const auto& pass : plan.schedule.passes) {
    bytes += pass[Operand::saved] == kNone ? 0 : plan.schedule.buffers[pass[Operand::saved]].bytes;
  }
  out["spilled_bytes"] = bytes / 2;
  const auto& home = plan.decisions.layers.home;
  if (!plan.spilling.empty()) out["spill_tier"] = home.in_memory() ? memory_name(budget, home.node) : "paths";
  if (auto why = spill_words(plan, budget); !why.empty()) out["spill_why"] = std::move(why);
  if (cost.path_seconds <= 0) return;
  out["seconds_of_a_layer"] = {
      {"paths", cost.path_seconds}, {"copy", cost.copy_seconds}, {"recompute", cost.recompute_seconds}};
}

/// Fate of the activations that autograd saves of layers. Nothing if the caller did not describe them.
void add_saved_activations(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  const auto& saved = budget.saved;
  if (saved.layers == 0) return;
  const auto host = plan.node_peaks.empty() ? "dram" : budget.nodes[0].name();
  auto& activations = out["saved_activations"] = {{"layers", saved.layers},
                                                  {"keep", plan.keeping.size()},
                                                  {"blocks", plan.keeping},
                                                  {"bytes", plan.saved},
                                                  {"tier", saved.on_device ? "device" : host},
                                                  {"asked", nullptr},
                                                  {"why", saved_words(plan, saved)},
                                                  {"spill", plan.spilling.size()},
                                                  {"spilled_blocks", plan.spilling}};
  if (saved.keep) activations["asked"] = *saved.keep;
  add_spilling(activations, plan, budget);
}

/// Work of the device with each block.
void add_device_blocks(nlohmann::json& out, const Plan& plan, const Description& description,
                       const state::Layout& layout) {
  if (!plan.placement.device) return;
  const auto blocks = device_blocks(plan, description, layout);
  out["device_blocks"] = {{"state_and_update", blocks.device_resident},
                          {"streamed_state_and_update", blocks.device_updated},
                          {"weight", blocks.weights},
                          {"streamed", blocks.streamed},
                          {"durable_bytes_per_step", blocks.durable},
                          {"why", device_blocks_words(plan)}};
  if (blocks.changes > 0) out["device_blocks"]["matrices_that_take_changes"] = blocks.changes;
}

/// For each axis with a choice, what was compared, and what it comes to.
void add_decisions(nlohmann::json& out, const Plan& plan) {
  auto& decisions = out["decisions"] = nlohmann::json::array();
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) {
    const auto compared = plan.compared_on(static_cast<Axis>(axis));
    if (compared.size() < 2) continue;
    auto& entry = decisions.emplace_back(nlohmann::json{{"name", kAxes[axis].name}, {"title", kAxes[axis].title}});
    for (const auto& it : compared) {
      nlohmann::json value{{"value", it.value}, {"fits", it.fits}, {"chosen", it.chosen}};
      if (it.fits) value.update({{"predicted_step_seconds", it.step_seconds}, {"bytes_per_step", it.moved}});
      entry["compared"].push_back(std::move(value));
    }
  }
}

void add_remote_drives(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  const auto why = plan.volumes.empty() ? std::string() : remote_words(budget.paths, plan.remote_seconds);
  if (why.empty()) return;
  auto& drives = out["far_drives"] = {{"paths", nlohmann::json::array()}, {"seconds", nullptr}, {"why", why}};
  if (plan.remote_seconds) drives["seconds"] = *plan.remote_seconds;
  for (const auto& path : budget.paths) {
    if (!path.remote) continue;
    auto& entry = drives["paths"].emplace_back(nlohmann::json{{"name", path.name}});
    if (path.node) entry["node"] = *path.node;
  }
}

/// Shares of the paths are those of the reserved volumes. The path of each object is decided as it is written.
void add_paths(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  const auto reserved = std::accumulate(plan.volumes.begin(), plan.volumes.end(), Bytes{0});
  for (std::size_t p = 0; p < plan.volumes.size(); ++p) {
    const auto& path = budget.paths[p];
    const auto share = [&](Bytes bytes) {
      const auto part = static_cast<double>(plan.volumes[p]) / static_cast<double>(std::max<Bytes>(1, reserved));
      return budget.paths.size() == 1 ? bytes : static_cast<Bytes>(static_cast<double>(bytes) * part);
    };
    const auto peak = plan.volumes[p] + plan.path_overhead;
    out["tiers"].push_back({{"name", path.name}, {"capacity", path.capacity}, {"planned_peak", peak}});
    if (plan.path_overhead > 0) {
      out["bytes"].push_back({{"class", "records"}, {"tier", path.name}, {"bytes", plan.path_overhead}});
    }
    Bytes spare = plan.volumes[p];  // to take over from a path that slows down
    for (const auto& [name, bytes] : plan.path_breakdown) {
      out["bytes"].push_back({{"class", name}, {"tier", path.name}, {"bytes", share(bytes)}});
      spare -= std::min(spare, share(bytes));
    }
    if (spare > 0) out["bytes"].push_back({{"class", "spare"}, {"tier", path.name}, {"bytes", spare}});
    const auto written = share(plan.written_per_step);
    out["path_bytes_per_step"][path.name] = {{"read", share(plan.read_per_step)}, {"written", written}};
    add_drive_life(out, path.name, written, plan.prediction.step_seconds, path.endurance);
  }
}

/// Bytes free there when all volumes are made and most is saved.
void add_saving(nlohmann::json& out, const Plan& plan, const Budget& budget) {
  const auto system = std::ranges::find(budget.systems, true, &FileSystem::output);
  if (!plan.saving || system == budget.systems.end()) return;
  const auto& saving = *plan.saving;
  Bytes volumes = 0;
  for (const auto p : system->paths) volumes += plan.volumes[p] + plan.path_overhead;
  out["saving"] = {{"file_system", system->name}, {"free", system->free},
                   {"volumes", volumes},          {"checkpoint_bytes", saving.checkpoint},
                   {"weights", saving.weights},   {"checkpoints_at_once", saving.at_once},
                   {"bytes", saving.bytes}};
}

/// Reduced gradients, and the same plan in full if that fits.
void add_reduced(nlohmann::json& out, const Plan& plan, const ReducedShare& share) {
  const auto& in_full = *plan.in_full;
  out = {{"matrices", share.matrices},
         {"elements", share.elements},
         {"gradient_bytes", share.gradients},
         {"gradient_bytes_in_full", share.gradients_in_full},
         {"helps", !no_help(plan)}};
  if (!in_full.fits) return;
  out["in_full"] = {{"predicted_step_seconds", in_full.step_seconds},
                    {"without_products_seconds", in_full.hidden_seconds},
                    {"path_bytes_per_step", in_full.on_paths},
                    {"device_bytes_per_step", in_full.on_link}};
}

void add_network(nlohmann::json& out, const Plan& plan, const Description& description) {
  out["world"] = description.world.size;
  out["rank"] = description.world.rank;
  out["network_sent"] = plan.schedule.network_sent;
  out["network_received"] = plan.schedule.network_received;
  out["machines"] = description.world.machines();
  out["between_machines"] = {{"sent", plan.schedule.sent_between}, {"received", plan.schedule.received_between}};
  out["own_weights"] = plan.decisions.own_weights;
}

}  // namespace

std::string to_json(const Plan& plan, const Description& description, const state::Layout& layout,
                    const Budget& budget) {
  using nlohmann::json;
  json out;
  out["fits"] = true;
  out["parameters"] = layout.parameters();
  out["learning_parameters"] = layout.trainable_parameters();
  out["weight_dtype"] = state::name_of(description.type);
  out["compute_dtype"] = state::name_of(description.computes());
  out["optimizer"] = description.optimizer->name;
  out["state_format"] = state::name_of(description.format);
  Bytes kept = 0;
  for (const auto& chunk : layout.chunks()) {
    kept += weight_bytes(description.rule(), chunk) + state_bytes(description.rule(), chunk);
  }
  out["bytes_per_parameter"] = static_cast<double>(kept) / static_cast<double>(layout.parameters());
  out["kept_logits"] = plan.kept_slices;
  out["tiers"] = json::array();
  out["bytes"] = json::array();
  add_memory(out, plan, description.rule(), layout, budget);
  add_device_memory(out, plan, budget);
  if (description.hidden > 0) add_boundaries(out, plan, layout, budget);
  add_saved_activations(out, plan, budget);
  add_device_blocks(out, plan, description, layout);
  add_decisions(out, plan);
  add_paths(out, plan, budget);
  add_remote_drives(out, plan, budget);
  add_saving(out, plan, budget);
  if (plan.in_full) add_reduced(out[text(layout.reduction()->word, "s")], plan, reduced_share(description, layout));
  const auto& prediction = plan.prediction;
  out["durability"] = name_of(plan.durability);
  if (plan.durability == Durability::step) {
    out["durability_per_step"] = {{"written", plan.durable_per_step}, {"seconds", plan.durable_seconds}};
  }
  out["updates"] = {{"asked", name_of(budget.updates)},
                    {"schedule", name_of(plan.early_chunks > 0 ? Updates::early : Updates::deferred)},
                    {"early_chunks", plan.early_chunks},
                    {"chunks", layout.chunks().size()},
                    {"undo_bytes", plan.undo},
                    {"seconds_saved", plan.early_saves},
                    {"speculative", plan.early_chunks > 0 && budget.clipping}};
  out["predicted_step_seconds"] = prediction.step_seconds;
  if (prediction.step_seconds > 0 && description.tokens > 0) {
    out["tokens_per_second"] = static_cast<double>(description.all_tokens()) / prediction.step_seconds;
  }
  if (description.is_shared()) add_network(out, plan, description);
  out["bottleneck"] = prediction.bottleneck;
  out["seconds"] = {{"compute", prediction.compute_seconds},
                    {"transfer", prediction.transfer_seconds},
                    {"update", prediction.update_seconds},
                    {"stall", prediction.stall_seconds}};
  if (budget.device) {
    out["seconds"]["to_device"] = prediction.seconds[Lane::to_device];
    out["seconds"]["from_device"] = prediction.seconds[Lane::from_device];
    out["seconds"]["device_update"] = prediction.seconds[Lane::device_update];
  }
  if (description.is_shared()) out["seconds"]["network"] = prediction.seconds[Lane::network];
  const auto& ahead = plan.lookahead;
  out["lookahead"] = {{"state_read", ahead.state_read},   {"write", ahead.write},
                      {"weight_read", ahead.weight_read}, {"backward", ahead.backward},
                      {"grad_write", ahead.grad_write},   {"head", ahead.head}};
  if (budget.device) out["lookahead"]["device"] = ahead.device;
  return out.dump(2);
}

}  // namespace spillway::plan
