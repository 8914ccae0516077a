// The NUMA nodes of the machine as the kernel describes them: DRAM of each socket, CXL cards, parts of either.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::sys {

/// What the firmware's table of memory attributes (HMAT) promises to the CPUs nearest to a node. 0: it does not
/// say. Promises, not measurements.
struct NodeAttributes {
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double read_latency_seconds = 0;
  double write_latency_seconds = 0;

  bool operator==(const NodeAttributes&) const = default;
};

/// How far another node is; 10 is the node itself.
struct NodeDistance {
  int node = 0;
  int distance = 0;

  bool operator==(const NodeDistance&) const = default;
};

/// An online node.
struct Node {
  int id = 0;
  std::vector<unsigned> cpus;           ///< its own, online; empty: only memory, as of a CXL card
  Bytes total = 0;                      ///< 0: only CPUs
  Bytes free = 0;                       ///< unused now
  Bytes available = 0;                  ///< `free` and what the kernel would give back without writing anything
  bool allowed = true;                  ///< this process may have memory there (cpuset, and a binding made by numactl)
  std::vector<NodeDistance> distances;  ///< from here to each online node; empty: the kernel does not say
  std::optional<NodeAttributes> attributes;  ///< none: no HMAT
  std::optional<int> tier;                   ///< the kernel's memory tier: a smaller number is faster memory
  std::vector<int> initiators;               ///< nodes whose CPUs are the nearest; empty: the kernel does not say

  [[nodiscard]] bool has_memory() const noexcept { return total > 0; }
};

/// By rising id. A kernel without NUMA (or a container without /sys) has node 0 with all CPUs and memory. Throws
/// Error(unsupported) where /proc is not mounted. `root`: in place of "/", for machines that are only files.
[[nodiscard]] std::vector<Node> nodes(const std::string& root = "");

/// The node of that number. Throws Error(bad_input) that names those there are, or that says why it is of no use:
/// without memory, offline, not allowed. `what` is how the caller's message calls the number ("node").
[[nodiscard]] const Node& find_node(const std::vector<Node>& nodes, int id, const std::string& what = "node");

/// Memory of a node that may be taken at once: what is available, less a margin that the kernel and others need (a 64th
/// of the node, at least 16 MiB, at most 1 GiB).
[[nodiscard]] Bytes takeable(const Node& node) noexcept;

/// CPUs nearest to a node: its own, or else those of its initiators, or else of the node at the least distance.
/// Empty only when no node has CPUs.
[[nodiscard]] std::vector<unsigned> nearest_cpus(const std::vector<Node>& nodes, int id);

/// CPUs of the physical core that `cpu` is part of, itself included. Only `cpu` where the kernel does not say.
[[nodiscard]] std::vector<unsigned> core_cpus(unsigned cpu, const std::string& root = "");

/// "0-3,8": the kernel's way of writing a set of small numbers, read and written. What is no number is left out.
[[nodiscard]] std::vector<int> parse_list(const std::string& words);
[[nodiscard]] std::string format_list(const std::vector<int>& numbers);

}  // namespace spillway::sys
