#include "spillway/plan/link.h"

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// Bytes per second between the device and a node; 0 = unknown.
double rate_of(const Rates& rates, std::size_t node, bool up) {
  const auto own = node >= rates.nodes.size() ? 0 : up ? rates.nodes[node].to_device : rates.nodes[node].from_device;
  return own > 0 ? own : up ? rates.to_device : rates.from_device;
}

/// True if the bytes on the host are resident chunks, each on its node.
bool stays_on_nodes(const Task& task, const Schedule& schedule) {
  return traits(task.what.kind).other_part && schedule.buffers[task.on_host().buffer].whole;
}

std::size_t node_of_buffer(const Task& task, const Schedule& schedule) {
  const auto buffer = task.on_host().buffer;
  return buffer == kNone ? 0 : schedule.buffers[buffer].node;
}

}  // namespace

std::size_t node_of_copy(const Task& task, const Schedule& schedule) {
  return stays_on_nodes(task, schedule) ? schedule.node[task.what.index] : node_of_buffer(task, schedule);
}

double copy_seconds(const Task& task, const Schedule& schedule, const state::Layout& layout,
                    const state::UpdateRule& rule, const Rates& rates) {
  const bool up = traits(task.lane).fetches;
  const auto at = [&](Bytes bytes, std::size_t node) { return seconds_at(bytes, rate_of(rates, node, up)); };
  const auto& what = traits(task.what.kind);
  if (!stays_on_nodes(task, schedule) || rates.nodes.empty()) {
    return rates.copy_latency + at(task.bytes, node_of_buffer(task, schedule));
  }
  double out = rates.copy_latency;
  for (auto c = task.what.index; c < task.what.end(); ++c) {
    out += at(what.bytes(rule, layout.chunks()[c]), schedule.node[c]);
  }
  return out;
}

}  // namespace spillway::plan
