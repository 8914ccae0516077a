// How fast a NUMA node is at what its lane will do: the update itself, by the CPUs nearest to it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/machine/calibrate.h"

namespace spillway::machine {

/// Bytes that are measured in, where there are as many: beyond the caches of most CPUs.
inline constexpr Bytes kRateMemory = 256 * MiB;

struct NodeRate {
  int id = 0;
  double update_elements_per_second = 0;         ///< all nearest CPUs together
  double update_elements_per_second_thread = 0;  ///< one of them
  double read_bytes_per_second = 0;              ///< all CPUs that this process may run on together

  bool operator==(const NodeRate&) const = default;
};

/// About three times `seconds` for each node, one after the other. Takes up to 256 MiB on each, or as much as a quarter
/// of what it has free. Throws what memory::Placed throws.
[[nodiscard]] std::vector<NodeRate> measure_nodes(const std::vector<int>& nodes, double seconds,
                                                  const UpdateKind& kind);

/// Measures memory that the caller has, every page in place, with as many threads on the CPUs `near` as these are;
/// rates of 0 where it is smaller than kCalibrationMemory. `id` is 0.
[[nodiscard]] NodeRate measure_memory(std::span<std::byte> memory, const std::vector<unsigned>& near, double seconds,
                                      const UpdateKind& kind);

}  // namespace spillway::machine
