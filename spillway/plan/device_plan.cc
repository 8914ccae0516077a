#include "spillway/plan/device_plan.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/largest.h"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kGrain = 128;
constexpr std::uint64_t kLongest = 1ULL << 24;

void check(const DeviceRequest& request) {
  const auto& hardware = request.hardware;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::bad_input, text("the profile of ", hardware.name, " cannot be planned with: ", what));
  };
  if (hardware.nodes.empty()) refuse("it has no memory nodes");
  if (std::ranges::none_of(hardware.nodes, [](const auto& node) { return node.update > 0; })) {
    refuse("no memory node has an update rate");
  }
  if (hardware.devices.empty() && hardware.host_flops <= 0) refuse("it has no GPU and compute_flops_per_second is 0");
  for (const auto& device : hardware.devices) {
    if (device.flops <= 0 || device.to_device <= 0 || device.from_device <= 0) refuse(device.name + " lacks a rate");
  }
  for (const auto& drive : hardware.drives) {
    if (drive.read <= 0 || drive.write <= 0) refuse(drive.name + " lacks a rate");
  }
}

DevicePlan with(const DeviceRequest& request, Preference preference, double on_device) {
  DevicePlan out;
  out.placement = place(request.hardware, request.model, request.work, request.budget, preference, on_device);
  out.step = play_step(request.hardware, request.model, request.work, out.placement);
  return out;
}

/// Drives that are dealt to, and nodes, are full at the same time: one bottleneck.
std::string group_of(const std::string& resource, const Hardware& hardware) {
  const bool drive = std::ranges::find(hardware.drives, resource, &Drive::name) != hardware.drives.end();
  if (drive && hardware.drives.size() > 1) return "paths";
  const bool node =
      std::ranges::any_of(hardware.nodes, [&](const auto& it) { return resource == "update on " + it.name; });
  return node && hardware.nodes.size() > 1 ? "update on memory nodes" : resource;
}

void name_bottlenecks(DevicePlan& plan, const Hardware& hardware) {
  std::map<std::string, double> groups;
  for (const auto& [name, seconds] : plan.step.alone) {
    auto& most = groups[group_of(name, hardware)];
    most = std::max(most, seconds);
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, seconds] : groups) order.emplace_back(-seconds, name);
  std::ranges::sort(order);
  if (!order.empty()) plan.bottleneck = order[0].second;
  if (order.size() > 1) plan.next_bottleneck = order[1].second;
}

}  // namespace

DevicePlan plan_for(const DeviceRequest& request) {
  check(request);
  DevicePlan best;
  for (const auto preference : {Preference::activations, Preference::states}) {
    for (const double on_device : {0.0, 0.25, 0.5, 1.0}) {
      if (on_device > 0 && request.hardware.devices.empty()) continue;
      auto now = with(request, preference, on_device);
      const bool first = best.step.seconds == 0;
      if (first || now.step.seconds < best.step.seconds * (1 - 1e-6)) best = std::move(now);
    }
  }
  const auto tokens = request.work.all_tokens() * std::max(1.0, best.placement.devices);
  best.tokens_per_second = tokens / best.step.seconds;
  name_bottlenecks(best, request.hardware);
  return best;
}

std::optional<InFull> plan_in_full(const DeviceRequest& request) {
  if (!request.model_in_full) return std::nullopt;
  auto other = request;
  other.model = *request.model_in_full;
  if (!fits(other)) return InFull{};
  const auto step = plan_for(other).step;
  other.model.gradient_products = request.model.gradient_products;
  return InFull{.fits = true,
                .step_seconds = step.seconds,
                .hidden_seconds = plan_for(other).step.seconds,
                .on_paths = static_cast<Bytes>(step.read + step.written),
                .on_link = static_cast<Bytes>(step.up + step.down)};
}

bool fits(const DeviceRequest& request) {
  check(request);
  try {
    static_cast<void>(place(request.hardware, request.model, request.work, request.budget, Preference::activations, 0));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return false;
  }
}

std::uint64_t longest_sequence(DeviceRequest request) {
  return kGrain * largest(kLongest / kGrain, [&](std::uint64_t grains) {
           request.work.sequence = grains * kGrain;
           return fits(request);
         });
}

std::vector<Change> changes(const DeviceRequest& request) {
  std::vector<Change> out;
  const auto add = [&](const std::string& what, const DeviceRequest& other) {
    try {
      const auto plan = plan_for(other);
      out.push_back({what, plan.step.seconds, plan.tokens_per_second});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) throw;
      out.push_back({what, 0, 0});
    }
  };
  const auto& hardware = request.hardware;
  auto more = request;
  more.budget.dram = (request.budget.dram > 0 ? request.budget.dram : hardware.dram_available) + GiB;
  const auto dram = std::ranges::find(more.hardware.nodes, false, &MemoryNode::cxl);
  if (dram != more.hardware.nodes.end()) {
    dram->capacity += GiB;
    add("1 GiB more DRAM", more);
  }
  const auto card = std::ranges::find(hardware.nodes, true, &MemoryNode::cxl);
  if (card != hardware.nodes.end()) {
    more = request;
    more.hardware.nodes.push_back(*card);
    more.hardware.nodes.back().name = "another card";
    add("one more CXL card as " + card->name, more);
  }
  if (!hardware.drives.empty()) {
    more = request;
    more.hardware.drives.push_back(hardware.drives.front());
    more.hardware.drives.back().name = "another drive";
    add("one more drive as " + hardware.drives.front().name, more);
  }
  if (!hardware.devices.empty()) {
    more = request;
    more.hardware.devices.push_back(hardware.devices.front());
    add("one more GPU, and its work", more);
  }
  more = request;
  more.work.sequence *= 2;
  add(text("sequences of ", more.work.sequence), more);
  return out;
}

FitTable fit_table(const DeviceRequest& request) {
  FitTable out;
  const auto dram = request.budget.dram > 0 ? request.budget.dram : request.hardware.dram_available;
  out.budgets = {dram / 4, dram / 2, dram};
  for (std::uint64_t s = std::max<std::uint64_t>(256, request.work.sequence / 4); out.sequences.size() < 6; s *= 2) {
    out.sequences.push_back(s);
  }
  out.batches = {1, 4, 16};
  auto other = request;
  out.fill([&](Bytes budget, std::uint64_t sequence, std::uint64_t batch) {
    other.budget.dram = budget;
    other.work.sequence = sequence;
    other.work.batch = batch;
    if (!fits(other)) return 0.0;
    const auto plan = with(other, Preference::activations, 0);
    return other.work.all_tokens() * std::max(1.0, plan.placement.devices) / plan.step.seconds;
  });
  return out;
}

}  // namespace spillway::plan
