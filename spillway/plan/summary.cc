#include "spillway/plan/summary.h"

#include <algorithm>
#include <numeric>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/device_blocks.h"
#include "spillway/plan/drive_life.h"
#include "spillway/plan/memory_breakdown.h"
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
void add_memory(PlanSummary& out, const Plan& plan, const state::UpdateRule& rule, const state::Layout& layout,
                const Budget& budget) {
  const auto first = plan.node_peaks.empty() ? "dram" : budget.nodes[0].name();
  const auto add = [&](const std::string& name, const std::string& tier, Bytes bytes) {
    if (bytes > 0) out.bytes.push_back({name, tier, bytes});
  };
  out.bytes.push_back({"interpreter and libraries", first, budget.process});
  out.bytes.push_back({"working set", first, budget.work});
  add("engine", first, kEngineBytes);
  add("logits", first, plan.kept_logits);
  if (!budget.saved_activations.on_device) add("saved activations", first, plan.saved);
  if (layout.reduction() != nullptr) add(layout.reduction()->auxiliary, first, plan.auxiliary);
  add("update workspace", first, plan.update_workspace);
  add("expert staging", first, plan.piece_staging);
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
    out.tiers.push_back({first, budget.dram, plan.dram_peak});
  }
  for (std::size_t n = 0; n < plan.node_peaks.size(); ++n) {
    const auto& node = budget.nodes[n];
    const auto capacity = traits(node.kind).is_rest ? budget.dram : node.capacity;
    out.tiers.push_back({node.name(), capacity, plan.node_peaks[n]});
  }
}

/// The memory of a device of its own.
void add_device_memory(PlanSummary& out, const Plan& plan, const Budget& budget) {
  if (!budget.device) return;
  const auto add = [&](const std::string& name, Bytes bytes) {
    if (bytes > 0) out.bytes.push_back({name, "device", bytes});
  };
  add("working set", budget.device->work);
  if (budget.saved_activations.on_device) add("saved activations", plan.saved);
  for (const auto& [name, bytes] : plan.device_breakdown) add(name, bytes);
  out.tiers.push_back({"device", budget.device->capacity, plan.device_peak});
  out.device_bytes_per_step = LinkBytes{plan.to_device_per_step, plan.from_device_per_step};
}

/// "dram", or the tier of host memory.
std::string memory_name(const Budget& budget, std::size_t node) {
  return budget.has_nodes() ? budget.nodes[node].name() : "dram";
}

/// How many boundary activations lie where from forward to backward.
void add_boundaries(PlanSummary& out, const Plan& plan, const state::Layout& layout, const Budget& budget) {
  std::map<std::string, std::uint64_t> counts;
  for (auto i = first_backward(layout); i < plan.placement.boundaries.size(); ++i) {
    const auto& it = plan.placement.boundaries[i];
    ++counts[it.has_device_copy() ? "device" : !it.in_memory() ? "paths" : memory_name(budget, it.node)];
  }
  out.boundary_activations = std::move(counts);
}

std::optional<PlannedFeatures> summarize_features(const Plan& plan, const Description& description,
                                                  const state::Layout& layout, const Budget& budget) {
  if (!has_features(description, layout)) return std::nullopt;
  const auto& home = plan.placement.features;
  return PlannedFeatures{.bytes = description.feature_bytes,
                         .tier = home.in_memory() ? memory_name(budget, home.node) : "paths"};
}

std::optional<PlannedPieces> summarize_pieces(const Plan& plan, const state::Layout& layout) {
  PlannedPieces out;
  for (const auto& block : layout.blocks()) {
    for (const auto& object : weight_objects(layout, block)) {
      if (layout.chunks()[object.first].asked >= 1) continue;
      const auto& home = plan.placement[object.first].weight;
      ++out.pieces;
      out.in_memory += home.on_host() ? 1 : 0;
      out.on_device += home.on_device() || home.has_device_copy() ? 1 : 0;
    }
  }
  return out.pieces > 0 ? std::optional(out) : std::nullopt;
}

/// Bytes and seconds of spilling.
void add_spilling(PlannedActivations& out, const Plan& plan, const Budget& budget) {
  const auto& cost = plan.spill_cost;
  Bytes bytes = 0;  // of the pass that leaves them, and of the one that finds them
  for (const auto& pass : plan.schedule.passes) {
    bytes += pass[Operand::saved] == kNone ? 0 : plan.schedule.buffers[pass[Operand::saved]].bytes;
  }
  out.spilled_bytes = bytes / 2;
  const auto& home = plan.decisions.layers.home;
  if (!plan.spilling.empty()) out.spill_tier = home.in_memory() ? memory_name(budget, home.node) : "paths";
  if (auto why = spill_words(plan, budget); !why.empty()) out.spill_why = std::move(why);
  if (cost.path_seconds <= 0) return;
  out.seconds_of_a_layer = SpillSeconds{cost.path_seconds, cost.copy_seconds, cost.recompute_seconds};
}

/// Fate of the activations that autograd saves of layers. Nothing if the caller did not describe them.
std::optional<PlannedActivations> summarize_saved(const Plan& plan, const Budget& budget) {
  const auto& saved = budget.saved_activations;
  if (saved.layers == 0) return std::nullopt;
  const auto host = plan.node_peaks.empty() ? "dram" : budget.nodes[0].name();
  PlannedActivations out{.layers = saved.layers,
                         .keep = plan.keeping.size(),
                         .blocks = plan.keeping,
                         .bytes = plan.saved,
                         .tier = saved.on_device ? "device" : host,
                         .asked = saved.keep,
                         .why = saved_words(plan, saved),
                         .spill = plan.spilling.size(),
                         .spilled_blocks = plan.spilling};
  add_spilling(out, plan, budget);
  return out;
}

/// Work of the device with each block.
std::optional<PlannedBlocks> summarize_blocks(const Plan& plan, const Description& description,
                                              const state::Layout& layout) {
  if (!plan.placement.device) return std::nullopt;
  const auto blocks = device_blocks(plan, description, layout);
  PlannedBlocks out{.state_and_update = blocks.device_resident,
                    .streamed_state_and_update = blocks.device_updated,
                    .weight = blocks.weights,
                    .streamed = blocks.streamed,
                    .durable_bytes_per_step = blocks.durable,
                    .why = device_blocks_words(plan)};
  if (blocks.changes > 0) out.matrices_that_take_changes = blocks.changes;
  return out;
}

/// For each axis with a choice, what was compared, and what it comes to.
std::vector<PlannedDecision> summarize_decisions(const Plan& plan) {
  std::vector<PlannedDecision> out;
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) {
    const auto compared = plan.compared_on(static_cast<Axis>(axis));
    if (compared.size() < 2) continue;
    const auto& [name, title, reason, is_shared] = kAxes[axis];
    auto& decision = out.emplace_back(PlannedDecision{name, title, reason});
    for (const auto& it : compared) {
      PlannedValue value{.value = it.value, .fits = it.fits, .chosen = it.chosen};
      if (it.fits) {
        value.predicted_step_seconds = it.step_seconds;
        value.bytes_per_step = it.moved;
      }
      decision.compared.push_back(std::move(value));
    }
  }
  return out;
}

std::optional<RemotePaths> summarize_remote(const Plan& plan, const Budget& budget) {
  auto why = plan.volumes.empty() ? std::string() : remote_words(budget.paths, plan.remote_seconds);
  if (why.empty()) return std::nullopt;
  RemotePaths out{.seconds = plan.remote_seconds, .why = std::move(why)};
  for (const auto& path : budget.paths) {
    if (path.remote) out.paths.push_back({path.name, path.node});
  }
  return out;
}

/// Shares of the paths are those of the reserved volumes. The path of each object is decided as it is written.
void add_paths(PlanSummary& out, const Plan& plan, const Budget& budget) {
  const auto reserved = std::accumulate(plan.volumes.begin(), plan.volumes.end(), Bytes{0});
  for (std::size_t p = 0; p < plan.volumes.size(); ++p) {
    const auto& path = budget.paths[p];
    const auto share = [&](Bytes bytes) {
      const auto part = static_cast<double>(plan.volumes[p]) / static_cast<double>(std::max<Bytes>(1, reserved));
      return budget.paths.size() == 1 ? bytes : static_cast<Bytes>(static_cast<double>(bytes) * part);
    };
    const auto peak = plan.volumes[p] + plan.path_overhead;
    out.tiers.push_back({path.name, path.capacity, peak});
    if (plan.path_overhead > 0) out.bytes.push_back({"records", path.name, plan.path_overhead});
    Bytes spare = plan.volumes[p];  // to take over from a path that slows down
    for (const auto& [name, bytes] : plan.path_breakdown) {
      out.bytes.push_back({name, path.name, share(bytes)});
      spare -= std::min(spare, share(bytes));
    }
    if (spare > 0) out.bytes.push_back({"spare", path.name, spare});
    const auto written = share(plan.written_per_step);
    out.path_bytes_per_step[path.name] = {share(plan.read_per_step), written};
    if (auto life = drive_life(written, plan.prediction.step_seconds, path.endurance)) {
      out.drive_life[path.name] = *life;
    }
  }
}

/// Bytes free there when all volumes are made and most is saved.
std::optional<PlannedSaving> summarize_saving(const Plan& plan, const Budget& budget) {
  const auto system = std::ranges::find(budget.file_systems, true, &FileSystem::output);
  if (!plan.saving || system == budget.file_systems.end()) return std::nullopt;
  const auto& saving = *plan.saving;
  Bytes volumes = 0;
  for (const auto p : system->paths) volumes += plan.volumes[p] + plan.path_overhead;
  return PlannedSaving{.file_system = system->name,
                       .free = system->free,
                       .volumes = volumes,
                       .checkpoint_bytes = saving.checkpoint,
                       .weights = saving.weights,
                       .checkpoints_at_once = saving.at_once,
                       .bytes = saving.bytes};
}

/// Reduced gradients, and the same plan in full if that fits.
std::optional<PlannedReduction> summarize_reduction(const Plan& plan, const Description& description,
                                                    const state::Layout& layout) {
  if (!plan.in_full) return std::nullopt;
  const auto share = reduced_share(description, layout);
  PlannedReduction out{.matrices = share.matrices,
                       .elements = share.elements,
                       .gradient_bytes = share.gradients,
                       .gradient_bytes_in_full = share.gradients_in_full,
                       .helps = !no_help(plan)};
  const auto& full = *plan.in_full;
  if (full.fits) out.in_full = FullPlan{full.step_seconds, full.hidden_seconds, full.on_paths, full.on_link};
  return out;
}

void add_network(PlanSummary& out, const Plan& plan, const Description& description) {
  const auto& schedule = plan.schedule;
  out.world = description.world.size;
  out.rank = description.world.rank;
  out.network_sent = schedule.network_sent;
  out.network_received = schedule.network_received;
  out.machines = description.world.machines();
  out.between_machines = NetworkBytes{schedule.sent_between, schedule.received_between};
  out.own_weights = plan.decisions.own_weights;
  out.seconds.network = plan.prediction.seconds[Lane::network];
}

void add_model(PlanSummary& out, const Description& description, const state::Layout& layout) {
  out.parameters = layout.parameters();
  out.learning_parameters = layout.trainable_parameters();
  out.weight_dtype = state::name_of(description.weight_dtype);
  out.compute_dtype = state::name_of(description.computes());
  out.optimizer = description.optimizer->name;
  out.state_format = state::name_of(description.state_format);
  Bytes kept = 0;
  for (const auto& chunk : layout.chunks()) {
    kept += weight_bytes(description.rule(), chunk) + state_bytes(description.rule(), chunk);
  }
  out.bytes_per_parameter = static_cast<double>(kept) / static_cast<double>(layout.parameters());
}

PlannedUpdates summarize_updates(const Plan& plan, const state::Layout& layout, const Budget& budget) {
  return {.asked = name_of(budget.update_schedule),
          .schedule = name_of(plan.early_chunks > 0 ? Updates::early : Updates::deferred),
          .early_chunks = plan.early_chunks,
          .chunks = layout.chunks().size(),
          .undo_bytes = plan.undo,
          .seconds_saved = plan.early_saves,
          .speculative = plan.early_chunks > 0 && budget.clipping};
}

/// Time of a step, and lookahead.
void add_prediction(PlanSummary& out, const Plan& plan, const Description& description, const Budget& budget) {
  const auto& prediction = plan.prediction;
  out.predicted_step_seconds = prediction.step_seconds;
  if (prediction.step_seconds > 0 && description.tokens > 0) {
    out.tokens_per_second = static_cast<double>(description.all_tokens()) / prediction.step_seconds;
  }
  out.bottleneck = prediction.bottleneck;
  out.seconds = {.compute = prediction.compute_seconds,
                 .transfer = prediction.transfer_seconds,
                 .update = prediction.update_seconds,
                 .stall = prediction.stall_seconds};
  const auto& ahead = plan.lookahead;
  out.lookahead = {.state_read = ahead.state_read,
                   .write = ahead.write,
                   .weight_read = ahead.weight_read,
                   .backward = ahead.backward,
                   .grad_write = ahead.grad_write,
                   .head = ahead.head};
  if (!budget.device) return;
  out.seconds.to_device = prediction.seconds[Lane::to_device];
  out.seconds.from_device = prediction.seconds[Lane::from_device];
  out.seconds.device_update = prediction.seconds[Lane::device_update];
  out.lookahead.device = ahead.device;
}

}  // namespace

PlanSummary summarize(const Plan& plan, const Description& description, const state::Layout& layout,
                      const Budget& budget) {
  PlanSummary out;
  add_model(out, description, layout);
  out.kept_logits = plan.kept_slices;
  add_memory(out, plan, description.rule(), layout, budget);
  add_device_memory(out, plan, budget);
  if (description.hidden_size > 0) add_boundaries(out, plan, layout, budget);
  out.saved_activations = summarize_saved(plan, budget);
  out.image_features = summarize_features(plan, description, layout, budget);
  out.device_blocks = summarize_blocks(plan, description, layout);
  out.pieces = summarize_pieces(plan, layout);
  out.decisions = summarize_decisions(plan);
  add_paths(out, plan, budget);
  out.far_drives = summarize_remote(plan, budget);
  out.saving = summarize_saving(plan, budget);
  out.subspaces = summarize_reduction(plan, description, layout);
  out.durability = name_of(plan.durability);
  if (plan.durability == Durability::step) {
    out.durability_per_step = DurabilityCost{plan.durable_per_step, plan.durable_seconds};
  }
  out.updates = summarize_updates(plan, layout, budget);
  add_prediction(out, plan, description, budget);
  if (description.is_shared()) add_network(out, plan, description);
  return out;
}

}  // namespace spillway::plan
