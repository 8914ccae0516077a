// Neighbours of a block that are copied together to a device or from it, so that copies are few and large.
#pragma once

#include <functional>
#include <vector>

#include "spillway/plan/placement.h"

namespace spillway::plan {

/// Neighbours that are one copy.
struct Coalesced {
  Range chunks;
  Bytes at = 0, bytes = 0;  ///< in the buffer of them all
};

/// Bytes of a chunk; and whether it may not go with the one before it.
using ChunkBytes = std::function<Bytes(Index)>;
using Separate = std::function<bool(Index)>;

/// All of `chunks`, in order, by copies of at least `coalesce_to` bytes where there are so many: a rest at the end goes
/// with those before it. `separate`: empty: they all may go together.
[[nodiscard]] std::vector<Coalesced> coalesce(Range chunks, Bytes coalesce_to, const ChunkBytes& bytes,
                                              const Separate& separate = {});

/// Chunks of a block that live on this process's device and have their snapshots in the same steps: their weights are
/// one copy, their states, which lie behind one another as far as they are one copy, one or more.
struct SnapshotGroup {
  Range chunks;
  std::vector<Coalesced> states;
};

/// The groups of all chunks that are device-resident and trainable and that this process has, in order.
[[nodiscard]] std::vector<SnapshotGroup> snapshot_groups(const Description& description, const state::Layout& layout,
                                                         const Placement& placement, Bytes coalesce_to);

}  // namespace spillway::plan
