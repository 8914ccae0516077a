#include "spillway/machine/probe.h"

#include <algorithm>

#include "spillway/machine/gpu_link.h"
#include "spillway/machine/measure.h"

namespace spillway::machine {
namespace {

constexpr double kNodeShare = 0.25;  ///< of the time for a figure of a path

std::string cpu_list(const sys::Node& node) {
  return sys::format_list({node.cpus.begin(), node.cpus.end()});
}

void take_measured(NodeProfile& out, const std::vector<NodeAccess>& matrix) {
  if (std::ranges::find(matrix, out.id, &NodeAccess::memory) == matrix.end()) return;
  const NodeAccess& best = best_access(matrix, out.id);
  out.read_bytes_per_second = best.read.most;
  out.write_bytes_per_second = best.write.most;
  out.copy_bytes_per_second = best.copy.most;
  out.update_elements_per_second = best.update.most;
  out.update_elements_per_second_thread = best.update.thread;
  out.update_threads = best.update.threads;
}

NodeProfile profile_of(const sys::Node& node, double share) {
  NodeProfile out;
  out.id = static_cast<unsigned>(node.id);
  out.kind = node.cpus.empty() ? MemoryKind::cxl : MemoryKind::dram;
  out.capacity = static_cast<Bytes>(static_cast<double>(node.total) * share);
  out.available = std::min(out.capacity, node.available);
  out.cpus = cpu_list(node);
  out.tier = node.tier.value_or(0);
  if (node.attributes) {
    out.promised_read_bytes_per_second = node.attributes->read_bytes_per_second;
    out.promised_write_bytes_per_second = node.attributes->write_bytes_per_second;
    out.promised_latency_seconds = node.attributes->read_latency_seconds;
  }
  return out;
}

/// The ids of the nodes that a GPU's copies are measured from; a single node is wherever the kernel puts it.
std::vector<unsigned> ids_of(const std::vector<NodeProfile>& nodes) {
  std::vector<unsigned> out;
  out.reserve(nodes.size());
  for (const auto& node : nodes) out.push_back(node.id);
  return out.size() > 1 ? out : std::vector<unsigned>{};
}

}  // namespace

std::vector<NodeProfile> node_profiles(const std::vector<sys::Node>& machine, const std::vector<NodeAccess>& matrix,
                                       Bytes dram_total) {
  Bytes dram = 0;
  for (const sys::Node& node : machine) dram += node.cpus.empty() ? 0 : node.total;
  const double share = dram > dram_total ? static_cast<double>(dram_total) / static_cast<double>(dram) : 1;
  std::vector<NodeProfile> out;
  for (const sys::Node& node : machine) {
    if (!node.has_memory() || !node.allowed) continue;
    out.push_back(profile_of(node, node.cpus.empty() ? 1 : share));
    take_measured(out.back(), matrix);
  }
  return out;
}

Profile probe(std::span<const std::filesystem::path> places, double seconds, const UpdateKind& kind) {
  Profile out = measure(places, seconds, kind);
  out.access = measure_matrix({.seconds = seconds * kNodeShare, .kind = kind});
  out.nodes = node_profiles(sys::nodes(), out.access, out.dram_total);
  out.gpus = measure_gpus({.seconds = seconds * kNodeShare, .nodes = ids_of(out.nodes)});
  const auto copies = std::ranges::max_element(out.access, {}, [](const auto& access) { return access.copy.thread; });
  if (copies != out.access.end()) out.copy_bytes_per_second = copies->copy.thread;
  return out;
}

}  // namespace spillway::machine
