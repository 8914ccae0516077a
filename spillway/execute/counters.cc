#include "spillway/execute/counters.h"

#include <algorithm>

#include "spillway/execute/trace.h"

namespace spillway::execute {
namespace {

std::string node_name(const plan::Budget& budget, std::size_t unit) {
  return budget.nodes.empty() ? "dram" : budget.nodes.at(unit).name();
}

/// The tier that a wait was for.
std::string waited_for(const plan::Budget& budget, const Cause& cause) {
  if (plan::is_path(cause.lane)) return budget.paths.at(cause.unit).name;
  return plan::is_of_device(cause.lane) ? "device" : node_name(budget, cause.unit);
}

/// The path that has not answered for the longest time; all of them where none has anything to answer.
std::string silent_path(const RunStorage& storage, const plan::Budget& budget) {
  const auto paths = storage.paths();
  std::string out;
  double longest = 0;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    const auto seconds = paths[p]->counters().silent_seconds;
    if (out.empty() || seconds > longest) out = budget.paths[p].name;
    longest = std::max(longest, seconds);
  }
  return longest > 0 || paths.size() == 1 ? out : "paths";
}

PathCounters of_path(const storage::Path& path) {
  const auto counted = path.counters();
  return {.read = counted.read,
          .written = counted.written,
          .busy_seconds = counted.busy_seconds,
          .read_seconds = counted.read_seconds,
          .write_seconds = counted.write_seconds,
          .syncs = counted.syncs,
          .sync_seconds = counted.sync_seconds,
          .direct = path.direct(),
          .notice = path.notice(),
          .volume = path.volume().string()};
}

/// Measured rates, and the paths that were retired.
void add_pool(Counters& out, const storage::Pool& pool, const plan::Budget& budget) {
  const auto states = pool.paths();
  for (std::size_t p = 0; p < states.size(); ++p) {
    auto& path = out.paths[budget.paths[p].name];
    path.read_rate = states[p].speed.read;
    path.write_rate = states[p].speed.write;
    path.used = states[p].capacity - states[p].free;
  }
  auto& outages = out.outages.emplace();
  for (const auto& outage : pool.outages()) outages.push_back({budget.paths[outage.path].name, outage.reason});
}

DeviceCounters of_device(const device::Device& device, const Executor& executor) {
  DeviceCounters out{.name = device.name(),
                     .memory = device.memory().size(),
                     .to_device = device.copied(device::Direction::to_device),
                     .from_device = device.copied(device::Direction::from_device),
                     .notice = device.notice()};
  const auto totals = executor.device_passes();
  for (std::size_t kind = 0; kind < totals.size(); ++kind) {
    if (totals[kind].passes > 0) out.passes[plan::kPasses[kind].key] = {totals[kind].passes, totals[kind].seconds};
  }
  return out;
}

}  // namespace

Counters counters(const Counted& run, const plan::Budget& budget) {
  Counters out;
  const auto& waits = run.executor.waits();
  out.arena_bytes = run.resources.host().size();
  out.stall_seconds = waits.list_by_lane();
  for (const auto& [cause, seconds] : waits.seconds()) {
    out.waits[waited_for(budget, cause)][plan::name_of(cause.lane)] = seconds;
  }
  const auto updated = run.executor.updated();
  for (std::size_t unit = 0; unit < updated.size(); ++unit) {
    out.updates[node_name(budget, unit)] = {updated[unit].elements, updated[unit].seconds};
  }
  for (const auto& it : run.asked_pieces.counts()) {
    if (!out.pieces) out.pieces.emplace();
    out.pieces->push_back({it.block, it.asked, it.resident, it.planned, it.swaps, it.pieces});
  }
  const auto paths = run.storage.paths();
  for (std::size_t p = 0; p < paths.size(); ++p) out.paths[budget.paths[p].name] = of_path(*paths[p]);
  run.saving.add_stalls(out.stall_seconds);
  if (const auto* device = run.resources.device()) out.device = of_device(*device, run.executor);
  if (const auto* pool = run.storage.pool()) add_pool(out, *pool, budget);
  return out;
}

std::map<std::string, Silence> silence(const Counted& run, const plan::Plan& plan, const state::Layout& layout,
                                       const plan::Budget& budget) {
  std::map<std::string, Silence> out;
  const auto paths = run.storage.paths();
  for (std::size_t p = 0; p < paths.size(); ++p) {
    const auto counted = paths[p]->counters();
    out[budget.paths[p].name] = {.volume = paths[p]->volume().string(),
                                 .under_way = counted.under_way,
                                 .silent_seconds = counted.silent_seconds};
  }
  for (const auto& [lane, front] : run.executor.device_fronts()) {
    auto& it = out[text("device:", plan::name_of(lane))];
    it = {.device = run.resources.device()->name(), .under_way = front.under_way, .silent_seconds = front.seconds};
    if (front.under_way == 0) continue;
    it.task = describe_task(plan, layout, plan.schedule.tasks[front.task]);
    it.bytes = front.bytes;
  }
  return out;
}

std::optional<Delay> lateness(const Counted& run, const plan::Schedule& schedule, const state::Layout& layout,
                              const plan::Budget& budget) {
  const auto late = run.executor.late();
  if (!late) return std::nullopt;
  const auto& cause = schedule.tasks[late->cause];
  const auto computed = [&] {
    const bool own = cause.what == schedule.tasks[late->task].what;
    return own ? std::string("its own computation") : text(pass_words(schedule, layout, cause), " to be computed");
  };
  return Delay{.task = pass_words(schedule, layout, schedule.tasks[late->task]),
               .waits_for = cause.lane == plan::Lane::compute ? computed()
                            : plan::is_path(cause.lane)       ? silent_path(run.storage, budget)
                            : plan::is_of_device(cause.lane)  ? "device"
                                                              : text("updates on ", node_name(budget, cause.unit)),
               .seconds = late->seconds};
}

std::optional<MemoryPlaces> where(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                                  const plan::Budget& budget, const std::vector<NodeOptions>& nodes,
                                  std::span<const std::byte> arena) {
  if (plan.regions.empty()) return std::nullopt;
  MemoryPlaces out{.chunks = layout.chunks().size()};
  const auto planned = plan::bytes_by_node(plan.regions, budget.nodes.size());
  const auto there = on_nodes(plan, layout, rule, budget, nodes, arena);
  for (std::size_t n = 0; n < planned.size(); ++n) {
    out.nodes[budget.nodes[n].name()] = {planned[n], there.held[n].there, there.held[n].in_memory};
  }
  out.elsewhere.assign(there.elsewhere.begin(), there.elsewhere.end());
  for (const auto& [name, it] : there.aside) out.aside[name] = {it.buffers, it.elsewhere};
  return out;
}

}  // namespace spillway::execute
