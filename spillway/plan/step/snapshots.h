// Snapshots: what an update has left of a chunk that stays in memory, on its way to the paths of a durable step.
#pragma once

#include <vector>

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// A part of a chunk's snapshot.
struct SnapshotPart {
  ObjectKind kind;
  Place GroupPlaces::*place;                   ///< around the update
  std::vector<Index> StepGraph::*writes;       ///< by chunk: the task that writes it
  Index (SnapshotGroups::*last)(Index) const;  ///< the last chunk whose part leaves a device by the same copy
  ChunkEvent read, updated;
};
inline constexpr SnapshotPart kWeightPart{ObjectKind::weight,          &GroupPlaces::weight,
                                          &StepGraph::snapshot_weight, &SnapshotGroups::last_weight,
                                          ChunkEvent::weight_read,     ChunkEvent::weight_updated};
inline constexpr SnapshotPart kStatePart{ObjectKind::state,          &GroupPlaces::state,
                                         &StepGraph::snapshot_state, &SnapshotGroups::last_state,
                                         ChunkEvent::state_read,     ChunkEvent::state_updated};

/// The part of chunk c is written after its update, when a step is durable and it stays in memory at `from`.
void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from);

/// Says in which steps the chunks leave their snapshots: those whose state stays in memory in turn.
void time_snapshots(StepGraph& graph);

}  // namespace spillway::plan::step
