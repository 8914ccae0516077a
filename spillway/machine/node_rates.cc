#include "spillway/machine/node_rates.h"

#include <algorithm>

#include "spillway/machine/node_work.h"
#include "spillway/memory/placed.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

constexpr Bytes kMemory = 256 * MiB;  // beyond the caches of most processors

NodeRate measure_node(const sys::Node& node, const std::vector<sys::Node>& machine, double seconds,
                      const UpdateKind& kind) {
  const auto bytes = std::min(kMemory, round_down(sys::takeable(node) / 4, 4096));
  NodeRate out{.id = node.id};
  if (bytes < kCalibrationMemory) return out;
  const auto near = sys::nearest_cpus(machine, node.id), mine = sys::thread_affinity();
  const memory::Placed placed(bytes, {.nodes = {node.id}});
  const auto updates = update_rates(placed.span(), near, near.size(), seconds, kind);
  out.update_elements_per_second_thread = updates.thread;
  out.update_elements_per_second = updates.all;
  const auto readers = std::clamp<std::size_t>(mine.size(), 1, bytes / kCalibrationMemory);
  out.read_bytes_per_second = together(placed.span(), static_cast<unsigned>(readers), mine,
                                       [&](std::span<std::byte> part) { return read_rate(part, seconds); });
  return out;
}

}  // namespace

std::vector<NodeRate> measure_nodes(const std::vector<int>& nodes, double seconds, const UpdateKind& kind) {
  const auto machine = sys::nodes();
  std::vector<NodeRate> out;
  for (const auto id : nodes) out.push_back(measure_node(sys::find_node(machine, id), machine, seconds, kind));
  return out;
}

}  // namespace spillway::machine
