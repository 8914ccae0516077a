#include "spillway/machine/node_rates.h"

#include <algorithm>

#include "spillway/machine/node_work.h"
#include "spillway/memory/placed.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

constexpr Bytes kMemory = 256 * MiB;  // beyond the caches of most processors
constexpr Bytes kLeastPart = kCalibrationMemory;

NodeRate measure_node(const sys::Node& node, const std::vector<sys::Node>& machine, double seconds,
                      const UpdateKind& kind) {
  const auto bytes = std::min(kMemory, round_down(sys::takeable(node) / 4, 4096));
  NodeRate out{.id = node.id};
  if (bytes < kLeastPart) return out;
  const memory::Placed placed(bytes, {.nodes = {node.id}});
  const auto most = bytes / kLeastPart;
  const auto run = [&](const std::vector<unsigned>& cpus, std::size_t threads, const auto& work) {
    return together(placed.span(), static_cast<unsigned>(std::clamp<std::size_t>(threads, 1, most)), cpus, work);
  };
  const auto near = sys::nearest_cpus(machine, node.id), mine = sys::thread_affinity();
  const auto update = [&](std::span<std::byte> part) { return calibrate_update(part, seconds, kind); };
  out.update_elements_per_second_thread = run(near, 1, update);
  out.update_elements_per_second =
      near.size() > 1 ? run(near, near.size(), update) : out.update_elements_per_second_thread;
  out.read_bytes_per_second =
      run(mine, mine.size(), [&](std::span<std::byte> part) { return read_rate(part, seconds); });
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
