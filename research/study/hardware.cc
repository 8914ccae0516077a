#include "research/study/hardware.h"

#include <algorithm>
#include <numeric>

namespace spillway::study {

namespace {

/// An AdamW update of exact states moves so many bytes: weight, remainder and moments in and out, the gradient in.
constexpr double kExactTraffic = 26;

}  // namespace

Hardware make_hardware(const machine::Profile& profile) {
  Hardware out;
  out.name = profile.machine.empty() ? "this machine" : profile.machine;
  for (const auto& node : profile.nodes) {
    out.nodes.push_back({.name = "numa:" + std::to_string(node.id),
                         .cxl = node.kind == machine::MemoryKind::cxl,
                         .capacity = node.capacity,
                         .update = kExactTraffic * node.update_elements_per_second,
                         .to_devices = node.to_gpus_bytes_per_second,
                         .from_devices = node.from_gpus_bytes_per_second});
  }
  for (const auto& gpu : profile.gpus) {
    out.devices.push_back({.name = "gpu:" + gpu.name,
                           .flops = gpu.flops_per_second,
                           .update = kExactTraffic * gpu.update_elements_per_second,
                           .to_device = gpu.to_gpu_bytes_per_second,
                           .from_device = gpu.from_gpu_bytes_per_second});
  }
  for (const auto& path : profile.paths) {
    out.drives.push_back({.name = "path:" + path.name,
                          .read = path.read_bytes_per_second,
                          .write = path.write_bytes_per_second,
                          .mixed = path.mixed_bytes_per_second});
  }
  return out;
}

double mixed_rate(const Drive& drive) {
  return drive.mixed > 0 ? drive.mixed : 2 / (1 / drive.read + 1 / drive.write);
}

FlowMachine::FlowMachine(Flow& flow, const Hardware& hardware, std::size_t devices) : hardware_(hardware) {
  const auto add = [&](const std::string& name, double rate) {
    return rate > 0 ? flow.add_resource({.name = name, .rate = rate}) : kNoLane;
  };
  for (std::size_t d = 0; d < std::min(devices, hardware.devices.size()); ++d) {
    const auto& device = hardware.devices[d];
    compute_.push_back(add("compute on " + device.name, device.flops));
    to_.push_back(add("link to " + device.name, device.to_device));
    from_.push_back(add("link from " + device.name, device.from_device));
    device_update_.push_back(add("update on " + device.name, device.update));
  }
  for (const auto& node : hardware.nodes) {
    node_to_.push_back(add(node.name + " to devices", node.to_devices));
    node_from_.push_back(add(node.name + " from devices", node.from_devices));
    node_update_.push_back(add("update on " + node.name, node.update));
  }
  for (const auto& drive : hardware.drives) {  // a unit is a second of the drive's time
    const auto shared = mixed_rate(drive) / 2 * (1 / drive.read + 1 / drive.write);
    drive_.push_back(flow.add_resource({.name = drive.name, .rate = 1, .shared = shared}));
  }
}

std::vector<FlowUse> FlowMachine::compute(std::size_t device) const {
  return {{compute_.at(device)}};
}

std::vector<FlowUse> FlowMachine::link(std::uint32_t link, bool back, const Shares& nodes) const {
  std::vector<FlowUse> out;
  if (link != kNoLane) out.push_back({link});
  const auto& ceilings = back ? node_from_ : node_to_;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n] > 0 && ceilings[n] != kNoLane) out.push_back({ceilings[n], nodes[n]});
  }
  return out;
}

std::vector<FlowUse> FlowMachine::to_device(std::size_t device, const Shares& nodes) const {
  return link(to_.at(device), false, nodes);
}

std::vector<FlowUse> FlowMachine::from_device(std::size_t device, const Shares& nodes) const {
  return link(from_.at(device), true, nodes);
}

std::vector<FlowUse> FlowMachine::read(const Shares& drives) const {
  std::vector<FlowUse> out;
  for (std::size_t d = 0; d < drives.size(); ++d) {
    if (drives[d] > 0) out.push_back({drive_[d], drives[d] / hardware_.drives[d].read});
  }
  return out;
}

std::vector<FlowUse> FlowMachine::write(const Shares& drives) const {
  std::vector<FlowUse> out;
  for (std::size_t d = 0; d < drives.size(); ++d) {
    if (drives[d] > 0) out.push_back({drive_[d], drives[d] / hardware_.drives[d].write, true});
  }
  return out;
}

std::vector<FlowUse> FlowMachine::update(const Shares& nodes) const {
  std::vector<FlowUse> out;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n] > 0 && node_update_[n] != kNoLane) out.push_back({node_update_[n], nodes[n]});
  }
  return out;
}

std::vector<FlowUse> FlowMachine::device_update(std::size_t device) const {
  return {{device_update_.at(device)}};
}

Shares in_proportion(std::span<const double> weights) {
  const auto sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  Shares out;
  for (const auto weight : weights) {
    out.push_back(sum > 0 ? weight / sum : 1 / static_cast<double>(weights.size()));
  }
  return out;
}

Shares all_at(std::size_t index, std::size_t count) {
  Shares out(count, 0);
  out.at(index) = 1;
  return out;
}

}  // namespace spillway::study
