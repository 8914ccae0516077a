// Which NUMA node each page of a range is for: plain values and arithmetic.
#pragma once

#include <cstddef>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/sys/nodes.h"

namespace spillway::memory {

/// Where memory shall lie.
struct Placement {
  std::vector<int> nodes;       ///< empty: wherever the kernel puts it
  std::vector<double> weights;  ///< shares of the nodes, each > 0, in any unit; empty: equal ones
  Bytes granularity = 0;        ///< distributed in pieces of this many bytes, a multiple of 4 KiB; 0: page by page
  bool strict = true;           ///< refused where a page would lie elsewhere; else nodes that are full are passed over

  bool operator==(const Placement&) const = default;
};

/// Bytes on a node; of sys::kAbsent: bytes that are not in memory.
struct NodeBytes {
  int node = 0;
  Bytes bytes = 0;

  bool operator==(const NodeBytes&) const = default;
};

/// A placement that makes sense on a machine, worked out: pieces are distributed in rounds in which each node has as
/// many as its weight says, spread as evenly as can be (4 to 1: four pieces of the first to one of the second).
class Striping {
 public:
  /// Throws Error(bad_input) that names what is wrong: a node that find_node refuses or that is named twice, weights
  /// that are not one positive number for each node, a granularity that is no multiple of 4 KiB. `placement.nodes` is
  /// not empty.
  Striping(const Placement& placement, const std::vector<sys::Node>& machine);

  /// The node of a page by its place in the range.
  [[nodiscard]] int node_of(std::size_t page) const noexcept { return round_[page / pages_per_piece_ % round_.size()]; }
  /// Each node's part of a range of that many bytes, whole pages; nodes as named, those without any too.
  [[nodiscard]] std::vector<NodeBytes> shares(Bytes bytes) const;

  [[nodiscard]] const std::vector<int>& nodes() const noexcept { return nodes_; }
  /// Pieces of each node in a round.
  [[nodiscard]] const std::vector<unsigned>& weights() const noexcept { return weights_; }
  /// Whether huge pages can lie behind a range that is distributed so.
  [[nodiscard]] bool takes_huge_pages() const noexcept;

 private:
  std::vector<int> nodes_;
  std::vector<unsigned> weights_;
  std::vector<int> round_;  ///< the node of each piece of a round
  std::size_t pages_per_piece_ = 1;
};

/// Weights as small whole numbers in the same proportion, at most 1024 in all, each at least 1; exact where they are
/// whole numbers whose reduced sum allows it, otherwise within a 1024th of the whole.
[[nodiscard]] std::vector<unsigned> whole_weights(const std::vector<double>& weights);

}  // namespace spillway::memory
