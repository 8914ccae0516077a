// What CPUs of one NUMA node reach on the memory of another: reads, writes, copies and the update itself.
#pragma once

#include <vector>

#include "spillway/machine/calibrate.h"
#include "spillway/machine/saturation.h"

namespace spillway::machine {

struct MatrixOptions {
  double seconds = 0.1;  ///< for each number of threads and each of the four
  UpdateKind kind;
  Bytes memory = 0;  ///< to work on, on one node at a time; 0: twice the caches, at least 256 MiB, at most 1 GiB and a
                     ///< quarter of what the node has free
};

/// Every node with CPUs that this process may run on by every node that it may have memory of; rates are 0 where
/// a node has no room for it, or memory may not be placed there. A second or two for each pair by default. Throws
/// Error(unsupported) where /proc is not mounted.
[[nodiscard]] std::vector<NodeAccess> measure_matrix(const MatrixOptions& options = {});

/// The CPUs that are best for a NUMA node: those of the pair with the fastest update, of equal ones the first.
/// `matrix` has a pair for the node.
[[nodiscard]] const NodeAccess& best_access(const std::vector<NodeAccess>& matrix, unsigned memory);

}  // namespace spillway::machine
