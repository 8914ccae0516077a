// Which NUMA node what stays of a chunk lies on: weight, remainder and moments of an element on one node.
//
// The updates of a step take as long as the node that ends last, so chunks are distributed in proportion to the rates
// at which the nodes update: then all end together, at the sum of their rates. In the order in which the forward pass
// needs the chunks, so that this holds for the first of them as for all. Slices of a table that tokens look up are
// updated one after the other, so that several nodes would make them no faster: they lie on the fastest.
#pragma once

#include <optional>
#include <vector>

#include "spillway/plan/placement.h"

namespace spillway::plan {

/// A way to distribute chunks to nodes.
struct DistributionPolicy {
  std::vector<std::uint16_t> nodes;  ///< that take part, indices into Budget::nodes; the first of Budget::nodes does
  bool fill = false;                 ///< one after the other, each until it is full; else by rates
  /// Tiers that gradients and boundary activations are distributed to (aside.h); none: they lie on the first.
  std::vector<std::uint16_t> aside = {};

  bool operator==(const DistributionPolicy&) const = default;
};

/// The ways that are worth trying: all nodes by rates, then without the slowest, and so on; then one after the other;
/// with `spill` the first node alone, the rest goes elsewhere. The best guess first.
[[nodiscard]] std::vector<DistributionPolicy> distribution_policies(const Rates& rates, std::size_t nodes, bool spill);

/// Bytes of a chunk that stay in DRAM, where several processes train in that of this one: whole pages.
[[nodiscard]] Bytes count_resident_bytes(const Description& description, const state::Layout& layout,
                                         const Placement& placement, Index chunk);

/// The node of each chunk (Placement::set_nodes) when node n has room for `room[n]` bytes of what stays; none when it
/// does not fit. A chunk of which only the weight stays lies where compute reads it best: on the first node while there
/// is room, or with Budget::streams_weights on the slowest, where it takes nothing from updates.
[[nodiscard]] std::optional<std::vector<std::uint16_t>> distribute(
    const Description& description, const state::Layout& layout, const Placement& placement, const Rates& rates,
    const DistributionPolicy& policy, std::vector<Bytes> room, bool streams_weights = false);

}  // namespace spillway::plan
