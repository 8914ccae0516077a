#include "spillway/plan/settings.h"

#include <algorithm>
#include <type_traits>

#include "spillway/base/error.h"
#include "spillway/plan/remote_drives.h"
#include "spillway/plan/settings_fields.h"

namespace spillway::plan {
namespace {

std::optional<double> check_share(std::optional<double> share, const char* of, const char* name) {
  if (share && !(*share >= 0 && *share <= 1)) {
    throw Error(ErrorCode::bad_input, text(of, " ", name, " is ", *share, "; a share is 0 to 1"));
  }
  return share;
}

double check_rate(double value, const char* key) {
  if (!(value >= 0)) {
    throw Error(ErrorCode::bad_input, text("the key ", key, " has the value ", value, "; it must be >= 0"));
  }
  return value;
}

/// The tier of host memory that a group is to lie on, by its name; empty: a share is given, or nothing.
std::optional<std::uint16_t> find_tier(const std::optional<ShareOrTier>& asked, const char* key,
                                       const std::vector<NodeBudget>& nodes) {
  if (!asked || !std::holds_alternative<std::string>(*asked)) return std::nullopt;
  const auto& name = std::get<std::string>(*asked);
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

/// 1 on a tier that is named.
std::optional<double> share_of(const std::optional<ShareOrTier>& asked, const char* key) {
  if (!asked) return std::nullopt;
  const auto* share = std::get_if<double>(&*asked);
  return share == nullptr ? std::optional(1.0) : check_share(*share, "placement", key);
}

PlacementShares make_placement(const PlacementSettings& asked, const std::vector<NodeBudget>& nodes) {
  return {.weight = check_share(asked.weight, "placement", "weight"),
          .state = check_share(asked.state, "placement", "state"),
          .grad = share_of(asked.grad, "grad"),
          .activation = share_of(asked.activation, "activation"),
          .grad_on = find_tier(asked.grad, "grad", nodes),
          .activation_on = find_tier(asked.activation, "activation", nodes)};
}

DeviceTier make_device(const DeviceSettings& device) {
  return {.capacity = device.memory,
          .work = device.work,
          .in_dram = device.in_dram,
          .weight = check_share(device.weight, "device", "weight"),
          .activation = check_share(device.activation, "device", "activation"),
          .state = check_share(device.state, "device", "state"),
          .device_updated = check_share(device.device_updated, "device", "device_updated"),
          .grad = check_share(device.grad, "device", "grad"),
          .applies_changes = device.applies_changes};
}

/// `dram`: the budget of the process.
NodeBudget make_node(const NodeSettings& node, Bytes dram) {
  if (traits(node.kind).is_rest) return {.capacity = dram, .kind = node.kind};
  return {.id = node.id, .capacity = node.capacity, .kind = node.kind};
}

/// The node of a drive that is remote.
std::optional<unsigned> node_of(const PathSettings& path) {
  return path.remote ? path.node : std::nullopt;
}

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
std::vector<NodeRates> make_node_rates(const EngineSettings& settings) {
  std::vector<NodeRates> out;
  for (const auto& node : settings.nodes) {
    out.push_back({.update = check_rate(node.update, "update"),
                   .update_thread = check_rate(node.update_thread, "update_thread"),
                   .read = check_rate(node.read, "read")});
    if (!settings.device || !traits(node.kind).is_numa) continue;
    for (const auto& link : settings.device->links) {
      if (link.node != node.id) continue;
      out.back().to_device = check_rate(link.to_gpu_bytes_per_second_together, "to_gpu_bytes_per_second_together");
      out.back().from_device =
          check_rate(link.from_gpu_bytes_per_second_together, "from_gpu_bytes_per_second_together");
    }
  }
  return out;
}

/// Rates of as many of the paths that the settings name as the profile knows.
void add_paths(Rates& out, const EngineSettings& settings) {
  const auto& profile = settings.profile;
  std::vector<std::optional<unsigned>> drives;
  out.io_cores = 0;
  for (std::size_t p = 0; p < std::min(profile.paths.size(), settings.storage.size()); ++p) {
    const auto path = machine::assume_rates(profile.paths[p]);
    out.paths.push_back({.read = path.read_bytes_per_second,
                         .write = path.write_bytes_per_second,
                         .mixed = path.mixed_bytes_per_second});
    out.io_cores += path.cores_at_full_speed;
    drives.push_back(node_of(settings.storage[p]));
  }
  if (!settings.near) return;
  const auto near = *settings.near;
  const auto known = [&](const auto& node) {
    return node && *node != near && crossing(profile, *node, near) > 0 && crossing(profile, near, *node) > 0;
  };
  if (std::ranges::none_of(drives, known)) return;
  out.near_paths = out.paths;
  out.paths = over_the_link(std::move(out.paths), drives, near, profile);
}

void add_seconds(Rates& out, const PassSeconds& seconds) {
  for_each_field<PassSeconds>([&](const auto& field) {
    const std::optional<double> value = field.get(seconds);
    if (value) check_rate(*value, field.name);
  });
  out.forward = seconds.forward;
  out.backward = seconds.backward;
  out.kept_forward = seconds.kept_forward.value_or(out.forward);
  out.kept_backward = seconds.kept_backward.value_or(std::max(0.0, out.backward - out.forward));
  out.head_loss = seconds.head_loss;
  out.head_gradient = seconds.head_gradient;
  out.tail_forward = seconds.tail_forward;
  out.tail_backward = seconds.tail_backward;
  out.between = seconds.between;
  out.entry_forward = seconds.entry_forward;
  out.entry_backward = seconds.entry_backward;
}

}  // namespace

PassSeconds scale(PassSeconds seconds, double factor) {
  for_each_field<PassSeconds>([&](const auto& field) {
    auto value = field.get(seconds);
    if constexpr (std::is_same_v<decltype(value), double>) {
      value *= factor;
    } else if (value) {
      *value *= factor;
    }
    field.set(seconds, value);
  });
  return seconds;
}

Budget make_budget(const EngineSettings& settings) {
  Budget out;
  out.dram = settings.dram_budget;
  out.process = settings.process_bytes;
  out.work = settings.work_bytes;
  out.keeps_logits = settings.keeps_logits;
  out.saved_activations = settings.saved_activations;
  out.window = settings.window;
  out.durability = settings.durability;
  out.resumes = settings.resumes;
  out.update_schedule = settings.update_schedule;
  out.clipping = settings.clipping;
  out.speculative_updates = settings.speculative_updates;
  out.checkpoints = settings.checkpoints;
  if (settings.device) out.device = make_device(*settings.device);
  for (std::size_t p = 0; p < settings.storage.size(); ++p) {
    const auto& path = settings.storage[p];
    out.paths.push_back({.name = text("path:", p),
                         .capacity = path.capacity,
                         .remote = path.remote,
                         .node = node_of(path),
                         .endurance = path.endurance.value_or(0) > 0 ? path.endurance : std::nullopt});
  }
  out.saving = settings.saving;
  out.file_systems = settings.file_systems;
  for (const auto& system : out.file_systems) {
    for (const auto p : system.paths) {
      if (p >= out.paths.size()) {
        throw Error(ErrorCode::bad_input, text("file system ", system.name, " names path ", p));
      }
    }
  }
  for (const auto& node : settings.nodes) out.nodes.push_back(make_node(node, out.dram));
  out.placement = make_placement(settings.placement, out.nodes);
  return out;
}

Rates make_rates(const EngineSettings& settings) {
  const auto& profile = settings.profile;
  Rates out;
  out.update_cores = std::min(settings.update_cores, profile.cores);
  out.cores = std::max(1U, profile.cores - out.update_cores);
  out.update = profile.update_elements_per_second;
  out.copy = profile.copy_bytes_per_second;
  out.update_all = profile.update_elements_per_second_all_cores;
  out.update_beside = profile.update_elements_per_second_beside;
  out.compute_beside = profile.compute_share_beside_update;
  out.nodes = make_node_rates(settings);
  share_threads(out);
  add_paths(out, settings);
  add_seconds(out, settings.seconds);
  if (settings.device) {
    const auto& device = *settings.device;
    out.to_device = check_rate(device.to_device, "to_device");
    out.from_device = check_rate(device.from_device, "from_device");
    out.copy_latency = check_rate(device.latency, "latency");
    out.device_update = check_rate(device.update, "update");
  }
  out.network = profile.network;
  out.network_inside = check_rate(settings.network_inside, "network_inside");
  out.network_latency = profile.network_latency;
  return out;
}

}  // namespace spillway::plan
