#include "spillway/plan/process_share.h"

#include <algorithm>

namespace spillway::plan {
namespace {

/// The nodes of DRAM together; their rates by so many processes.
machine::NodeProfile together(const std::vector<machine::NodeProfile>& nodes, unsigned processes) {
  machine::NodeProfile out;
  for (const auto& node : nodes) {
    if (node.kind == machine::MemoryKind::cxl) continue;
    out.capacity += node.capacity / processes;
    out.update_elements_per_second += node.update_elements_per_second / processes;
    out.to_gpus_bytes_per_second += node.to_gpus_bytes_per_second / processes;
    out.from_gpus_bytes_per_second += node.from_gpus_bytes_per_second / processes;
    out.update_elements_per_second_thread =
        std::max(out.update_elements_per_second_thread, node.update_elements_per_second_thread);
  }
  return out;
}

/// A GPU's link moves no more than the process's share of what memory does.
void bound(machine::GpuProfile& gpu, const machine::NodeProfile& node) {
  const auto least = [](double& link, double ceiling) { link = ceiling > 0 ? std::min(link, ceiling) : link; };
  least(gpu.to_gpu_bytes_per_second, node.to_gpus_bytes_per_second);
  least(gpu.from_gpu_bytes_per_second, node.from_gpus_bytes_per_second);
}

}  // namespace

machine::Profile process_share(machine::Profile profile, unsigned processes) {
  profile.cores = std::max(1U, profile.cores / processes);
  profile.dram_total /= processes;
  profile.dram_available /= processes;
  if (!profile.nodes.empty()) profile.nodes = {together(profile.nodes, processes)};
  for (auto& path : profile.paths) {
    path.read_bytes_per_second /= processes;
    path.write_bytes_per_second /= processes;
    path.mixed_bytes_per_second /= processes;
    path.cores_at_full_speed /= processes;
    path.capacity /= processes;
  }
  if (profile.gpus.size() > 1) profile.gpus.resize(1);
  for (auto& gpu : profile.gpus) {
    gpu.links.clear();  // of the nodes, which are one now
    if (!profile.nodes.empty()) bound(gpu, profile.nodes.front());
  }
  profile.update_elements_per_second_all_cores /= processes;
  profile.compute_flops_per_second /= processes;
  profile.network /= processes;
  return profile;
}

double inside_rate(const machine::Profile& profile) noexcept {
  if (profile.copy_bytes_per_second > 0) return profile.copy_bytes_per_second;
  return profile.gpus.empty() ? 0 : profile.gpus.front().peer_bytes_per_second;
}

}  // namespace spillway::plan
