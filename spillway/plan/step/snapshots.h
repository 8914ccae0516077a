// Snapshots: what an update has left of a chunk that stays in memory, on its way to the paths of a durable step.
#pragma once

#include <vector>

#include "spillway/plan/step/updates.h"

namespace spillway::plan::step {

/// A part of a chunk's snapshot.
struct SnapshotPart {
  UpdatePart of;
  std::vector<Index> StepGraph::*writes;       ///< by chunk: the task that writes it
  Index (SnapshotGroups::*last)(Index) const;  ///< the last chunk whose part leaves a device by the same copy
};
inline constexpr SnapshotPart kWeightSnapshot{kWeightPart, &StepGraph::snapshot_weight, &SnapshotGroups::last_weight};
inline constexpr SnapshotPart kStateSnapshot{kStatePart, &StepGraph::snapshot_state, &SnapshotGroups::last_state};

/// The part of chunk c is written after its update, when a step is durable and it stays in memory at `from`.
void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from);

/// Says in which steps the chunks leave their snapshots: those whose state stays in memory in turn.
void time_snapshots(StepGraph& graph);

}  // namespace spillway::plan::step
