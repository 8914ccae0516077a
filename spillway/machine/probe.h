// Everything about this machine that a plan may ask for, measured in less than a minute.
#pragma once

#include <filesystem>
#include <span>

#include "spillway/machine/calibrate.h"
#include "spillway/machine/node_matrix.h"
#include "spillway/machine/profile.h"
#include "spillway/sys/nodes.h"

namespace spillway::machine {

/// Measures what `measure` does (paths, the update on one thread), and in addition the rate of copies, every NUMA node
/// with what is known of it and what was measured, the matrix of CPUs by memory, and each GPU's link from every node.
/// `layers`, `compute_flops_per_second` and the GPUs' stay unknown: products are the compute library's. `places` as of
/// `measure`; `seconds` for each figure of a path, a quarter of it for each of a node.
[[nodiscard]] Profile probe(std::span<const std::filesystem::path> places, double seconds = 0.4,
                            const UpdateKind& kind = {});

/// The nodes of a machine as profiles, from what it says and, where there is a pair for a node, was measured. Of DRAM
/// no more than `dram_total`, which a cgroup may limit: then each has its share of it.
[[nodiscard]] std::vector<NodeProfile> node_profiles(const std::vector<sys::Node>& machine,
                                                     const std::vector<NodeAccess>& matrix, Bytes dram_total);

}  // namespace spillway::machine
