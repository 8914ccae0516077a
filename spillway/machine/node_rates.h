// How fast a NUMA node is at what its lane will do: the update itself, by the processors nearest to it.
#pragma once

#include <vector>

#include "spillway/machine/calibrate.h"

namespace spillway::machine {

struct NodeRate {
  int id = 0;
  double update_elements_per_second = 0;         ///< all nearest processors together
  double update_elements_per_second_thread = 0;  ///< one of them
  double read_bytes_per_second = 0;              ///< all processors that this process may run on together

  bool operator==(const NodeRate&) const = default;
};

/// About three times `seconds` for each node, one after the other. Takes up to 256 MiB on each, or as much as a quarter
/// of what it has free. Throws what memory::Placed throws.
[[nodiscard]] std::vector<NodeRate> measure_nodes(const std::vector<int>& nodes, double seconds,
                                                  const UpdateKind& kind);

}  // namespace spillway::machine
