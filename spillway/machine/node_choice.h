// Which NUMA nodes a run uses, and how much of each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::machine {

struct NodeShare {
  int id = 0;          ///< the kernel's number
  Bytes capacity = 0;  ///< for all that the process holds there

  bool operator==(const NodeShare&) const = default;
};

struct NodeChoice {
  /// The first is `near`, else that of most CPUs that this thread may run on. Empty: the machine has one node, or
  /// memory may not be placed here; then there is one tier, of DRAM.
  std::vector<NodeShare> nodes;
  std::optional<Bytes> dram;  ///< with that one tier: what was asked of it
  std::string notice;         ///< why the nodes are not told apart, for a person; empty: they are, or there is one
};

/// `asked`: these and no others; empty: every node that this process may use, with what can be taken there now. `held`:
/// bytes of this process that are there already, counted to the first node. Throws Error(bad_input) for a node that is
/// named twice or is of no use (sys::find_node), Error(does_not_fit) that says what would fit when one has less than
/// what is asked of it, Error(unsupported) when nodes are asked for and memory may not be placed. `near`: the node of
/// the GPU that computes; it matters where it is one of them. `root`: in place of "/", for machines that are only
/// files.
[[nodiscard]] NodeChoice choose_nodes(const std::vector<NodeShare>& asked, Bytes held, const std::string& root = "",
                                      std::optional<int> near = std::nullopt);

}  // namespace spillway::machine
