#include "spillway/machine/node_matrix.h"

#include <algorithm>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/machine/node_work.h"
#include "spillway/memory/placed.h"
#include "spillway/sys/cpu.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

constexpr Bytes kLeast = 256 * MiB, kMost = 1 * GiB;
constexpr Bytes kPart = kCalibrationMemory;  ///< least memory of a thread

using Cpus = std::vector<unsigned>;

Bytes memory_for(const sys::Node& node, Bytes asked) {
  const Bytes wanted = asked == 0 ? std::clamp(2 * sys::largest_caches(), kLeast, kMost) : asked;
  return round_down(std::min(wanted, sys::takeable(node) / 4), 2 * MiB);
}

NodeAccess measure_access(std::span<std::byte> memory, const Cpus& near, const MatrixOptions& options) {
  const auto most = static_cast<unsigned>(std::min<Bytes>(near.size(), memory.size() / kPart));
  const auto grown = [&](const auto& work) {
    return saturate(most, [&](unsigned threads) { return together(memory, threads, near, work); });
  };
  NodeAccess out;
  out.write = grown([&](auto part) { return write_rate(part, options.seconds); });
  out.read = grown([&](auto part) { return read_rate(part, options.seconds); });
  out.copy = grown([&](auto part) { return calibrate_copy(part, options.seconds); });
  out.update = grown([&](auto part) { return calibrate_update(part, options.seconds, options.kind); });
  return out;
}

int distance_between(const sys::Node& cpus, int memory) {
  const auto found = std::ranges::find(cpus.distances, memory, &sys::NodeDistance::node);
  return found == cpus.distances.end() ? 0 : found->distance;
}

/// Those that this thread may run on.
Cpus usable(const sys::Node& node) {
  const auto own = sys::thread_affinity();
  Cpus out;
  for (const unsigned cpu : node.cpus) {
    if (std::ranges::binary_search(own, cpu)) out.push_back(cpu);
  }
  return out;
}

/// All pairs of one node's memory, which is taken once.
void measure_node(std::vector<NodeAccess>& out, const sys::Node& node, const std::vector<sys::Node>& machine,
                  const MatrixOptions& options) {
  const bool may = sys::numa_refusal().empty() || std::ranges::count_if(machine, &sys::Node::has_memory) == 1;
  const Bytes bytes = may ? memory_for(node, options.memory) : 0;
  std::optional<memory::Placed> placed;
  if (bytes >= kPart) placed.emplace(bytes, memory::Placement{.nodes = {node.id}});
  for (const sys::Node& cpus : machine) {
    const Cpus near = usable(cpus);
    if (near.empty()) continue;
    NodeAccess found = placed ? measure_access(placed->span(), near, options) : NodeAccess{};
    found.cpus = static_cast<unsigned>(cpus.id);
    found.memory = static_cast<unsigned>(node.id);
    found.distance = distance_between(cpus, node.id);
    out.push_back(found);
  }
}

}  // namespace

std::vector<NodeAccess> measure_matrix(const MatrixOptions& options) {
  const auto machine = sys::nodes();
  std::vector<NodeAccess> out;
  for (const sys::Node& node : machine) {
    if (node.has_memory() && node.allowed) measure_node(out, node, machine, options);
  }
  return out;
}

const NodeAccess& best_access(const std::vector<NodeAccess>& matrix, unsigned memory) {
  const NodeAccess* best = nullptr;
  for (const NodeAccess& access : matrix) {
    if (access.memory != memory) continue;
    if (best == nullptr || access.update.most > best->update.most) best = &access;
  }
  if (best == nullptr) throw Error(ErrorCode::internal, text("node ", memory, " was not measured"));
  return *best;
}

}  // namespace spillway::machine
