// The ranges of the arena that lie on each NUMA node.
#pragma once

#include <vector>

#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

/// Bytes [begin, end) of the arena on a node, an index into Budget::nodes.
struct Region {
  Bytes begin = 0, end = 0;
  std::uint16_t node = 0;

  [[nodiscard]] Bytes bytes() const noexcept { return end - begin; }
};

/// Moves what stays of a schedule that is laid out, so that all of a node's lies together, by Schedule::node and
/// Buffer::node: from the bottom up the later nodes, each with what comes and goes there above what stays; layers whose
/// chunks lie on several nodes (their weights are one range, as the device reads them, and each chunk's part of it is
/// on the chunk's node); the first node's; and above, on the first node, all else that comes and goes. Returns the
/// regions that cover an arena that had `bytes`, in order, whole pages; the largest end is its new size: each node
/// begins at a huge page.
[[nodiscard]] std::vector<Region> place_on_nodes(Schedule& schedule, const state::Layout& layout, Bytes bytes);

/// Most that place_on_nodes() adds, and most that it adds to one node.
[[nodiscard]] Bytes node_padding(std::size_t nodes, const state::Layout& layout, Bytes weight_element) noexcept;

/// Bytes by node.
[[nodiscard]] std::vector<Bytes> bytes_by_node(const std::vector<Region>& regions, std::size_t nodes);

}  // namespace spillway::plan
