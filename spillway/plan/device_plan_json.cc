#include <nlohmann/json.hpp>

#include "spillway/plan/device_plan.h"
#include "spillway/plan/drive_life.h"
#include "spillway/plan/fits_json.h"
#include "spillway/plan/subspaces_json.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

class Writer {
 public:
  Writer(const DeviceRequest& request, const DevicePlan& plan) : request_(request), plan_(plan) {}

  json write() {
    out_["fits"] = true;
    out_["machine"] = request_.hardware.name;
    out_["tiers"] = json::array();
    out_["bytes"] = json::array();
    add_tiers();
    const auto& step = plan_.step;
    out_["predicted_step_seconds"] = step.seconds;
    out_["tokens_per_second"] = plan_.tokens_per_second;
    out_["bottleneck"] = plan_.bottleneck;
    out_["next_bottleneck"] = plan_.next_bottleneck;
    out_["seconds_alone"] = step.alone;
    out_["link_bytes_per_step"] = {{"to_device", whole(step.up)}, {"from_device", whole(step.down)}};
    out_["path_bytes_per_step"] = json::object();
    for (std::size_t d = 0; d < request_.hardware.drives.size() && !plan_.placement.drives.empty(); ++d) {
      const auto& name = request_.hardware.drives[d].name;
      const auto written = whole(step.written * plan_.placement.drives[d]);
      out_["path_bytes_per_step"][name] = {{"read", whole(step.read * plan_.placement.drives[d])},
                                           {"written", written}};
      add_drive_life(out_, name, written, step.seconds, std::nullopt);
    }
    out_["durability"] = plan_.placement.durable ? "step" : "none";
    add_shares();
    if (const auto whole = plan_in_full(request_)) {
      out_["subspaces"] = subspaces_json(request_.subspaces, *whole, helps(*whole, step.seconds));
    }
    add_answers();
    return std::move(out_);
  }

 private:
  [[nodiscard]] static Bytes whole(double bytes) { return static_cast<Bytes>(std::max(0.0, bytes) + 0.5); }

  void add_tier(const std::string& name, double capacity, const ByClass& classes) {
    out_["tiers"].push_back({{"name", name}, {"capacity", whole(capacity)}, {"planned_peak", whole(sum_of(classes))}});
    for (const auto& [kind, bytes] : classes) {
      if (bytes < 1) continue;
      out_["bytes"].push_back({{"class", kind}, {"tier", name}, {"bytes", whole(bytes)}});
    }
  }

  void add_tiers() {
    const auto& hardware = request_.hardware;
    if (!hardware.devices.empty()) {  // each of equal ones
      const auto& device = hardware.devices.front();
      const auto there = request_.budget.device > 0 ? std::min(request_.budget.device, device.memory) : device.memory;
      add_tier(device.name, static_cast<double>(there), plan_.placement.device_bytes);
      out_["tiers"].back()["count"] = hardware.devices.size();
    }
    const auto bound = request_.budget.dram > 0 ? request_.budget.dram : hardware.dram_available;
    const auto cut = std::min(1.0, static_cast<double>(bound) / static_cast<double>(hardware.memory(false)));
    for (std::size_t n = 0; n < hardware.nodes.size(); ++n) {
      const auto& node = hardware.nodes[n];
      add_tier(node.name, static_cast<double>(node.capacity) * (node.cxl ? 1 : cut), plan_.placement.node_bytes[n]);
    }
    for (std::size_t d = 0; d < hardware.drives.size(); ++d) {
      add_tier(hardware.drives[d].name, static_cast<double>(hardware.drives[d].capacity),
               plan_.placement.drive_bytes[d]);
    }
  }

  /// What an executor follows.
  void add_shares() {
    const auto& place = plan_.placement;
    out_["shares"] = {{"device",
                       {{"state", place.device_state},
                        {"activation", place.device_border},
                        {"weight_kept_for_backward", place.device_weight}}},
                      {"path",
                       {{"weight", place.weight_path},
                        {"state", place.state_path},
                        {"grad", place.grad_path},
                        {"activation", place.border_path}}},
                      {"state_by_node", place.state_nodes},
                      {"by_path", place.drives},
                      {"window", kWeightWindow},
                      {"activations_relayed", place.relay}};
  }

  void add_answers() {
    out_["longest_sequence"] = longest_sequence(request_);
    out_["what_if"] = json::array();
    for (const auto& change : changes(request_)) {
      out_["what_if"].push_back({{"what", change.what},
                                 {"fits", change.seconds > 0},
                                 {"step_seconds", change.seconds},
                                 {"tokens_per_second", change.tokens_per_second}});
    }
    out_["fit_table"] = fits_json(fit_table(request_));
  }

  const DeviceRequest& request_;
  const DevicePlan& plan_;
  json out_;
};

}  // namespace

std::string plan_json(const DeviceRequest& request) {
  return Writer(request, plan_for(request)).write().dump(2);
}

}  // namespace spillway::plan
