#include "spillway/plan/link.h"

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// Bytes per second between the device and a node; 0 = unknown.
double rate_of(const Rates& rates, std::size_t node, bool up) {
  const auto own = node >= rates.nodes.size() ? 0 : up ? rates.nodes[node].to_device : rates.nodes[node].from_device;
  return own > 0 ? own : up ? rates.to_device : rates.from_device;
}

}  // namespace

double copy_seconds(const Task& task, const Schedule& schedule, const state::Layout& layout,
                    const state::UpdateRule& rule, const Rates& rates) {
  const bool up = traits(task.lane).fetches;
  const auto at = [&](Bytes bytes, std::size_t node) { return seconds_at(bytes, rate_of(rates, node, up)); };
  const auto& what = traits(task.what.kind);
  const bool stays = what.other_part && schedule.buffers[task.on_host().buffer].whole;
  const auto on_host = task.on_host().buffer;
  const auto node = on_host == kNone ? std::uint16_t{0} : schedule.buffers[on_host].node;
  if (!stays || rates.nodes.empty()) return rates.copy_latency + at(task.bytes, node);
  double out = rates.copy_latency;
  for (auto c = task.what.index; c < task.what.end(); ++c) {
    out += at(what.bytes(rule, layout.chunks()[c]), schedule.node[c]);
  }
  return out;
}

}  // namespace spillway::plan
