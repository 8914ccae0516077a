#include "spillway/machine/node_rates.h"

#include <algorithm>

#include "spillway/machine/node_work.h"
#include "spillway/memory/placed.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

NodeRate measure_node(const sys::Node& node, const std::vector<sys::Node>& machine, double seconds,
                      const UpdateKind& kind) {
  const auto bytes = std::min(kRateMemory, round_down(sys::takeable(node) / 4, 4096));
  if (bytes < kCalibrationMemory) return {.id = node.id};
  const memory::Placed placed(bytes, {.nodes = {node.id}});
  auto out = measure_memory(placed.span(), sys::nearest_cpus(machine, node.id), seconds, kind);
  out.id = node.id;
  return out;
}

}  // namespace

NodeRate measure_memory(std::span<std::byte> memory, const std::vector<unsigned>& near, double seconds,
                        const UpdateKind& kind) {
  NodeRate out;
  if (memory.size() < kCalibrationMemory) return out;
  const auto updates = update_rates(memory, near, near.size(), seconds, kind);
  out.update_elements_per_second_thread = updates.thread;
  out.update_elements_per_second = updates.all;
  const auto mine = sys::thread_affinity();
  const auto readers = std::clamp<std::size_t>(mine.size(), 1, memory.size() / kCalibrationMemory);
  out.read_bytes_per_second = together(memory, static_cast<unsigned>(readers), mine,
                                       [&](std::span<std::byte> part) { return read_rate(part, seconds); });
  return out;
}

std::vector<NodeRate> measure_nodes(const std::vector<int>& nodes, double seconds, const UpdateKind& kind) {
  const auto machine = sys::nodes();
  std::vector<NodeRate> out;
  out.reserve(nodes.size());
  for (const auto id : nodes) out.push_back(measure_node(sys::find_node(machine, id), machine, seconds, kind));
  return out;
}

}  // namespace spillway::machine
