// Transfers between memory and the storage paths, and between a device and the host, as a step's passes make them.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// Bytes of a transfer, their source and their destination.
struct Move {
  Object what;
  Place from, to;
  Bytes bytes;
};

/// The task alone, which follows nothing and lets nothing follow.
Index add_transfer(StepGraph& graph, Lane lane, Phase phase, const Move& move, std::uint32_t deadline);

/// From a path to where it fills the buffer; back from where it is the last to need it.
Index add_read(StepGraph& graph, Object what, Place to, Bytes bytes, std::uint32_t deadline, Phase phase);
Index add_write(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline, Phase phase);

/// The passes that an activation is made by and comes back for, and the position up to which it may lie where the first
/// one has put it.
struct Journey {
  Index made, needed;
  std::uint32_t left;
};
/// Its buffers, the one that it leaves and the one that it comes back to, and its tasks.
struct RoundTrip {
  Index away, home;
  Index write, read;
};
/// To a path behind the passes that make and use it, and back ahead of the pass that needs it, which waits for it. Who
/// fills the first buffer, and who lets go of the second, is the caller's to say.
RoundTrip add_round_trip(StepGraph& graph, BufferClass kind, const Activation& activation, const Journey& passes);

/// A part of a chunk's snapshot.
struct SnapshotPart {
  ObjectKind kind;
  Place GroupPlaces::*place;                   ///< around the update
  std::vector<Index> StepGraph::*writes;       ///< by chunk: the task that writes it
  Index (SnapshotGroups::*last)(Index) const;  ///< the last chunk whose part leaves a device by the same copy
  ChunkEvent updated;
};
inline constexpr SnapshotPart kWeightPart{ObjectKind::weight, &GroupPlaces::weight, &StepGraph::snapshot_weight,
                                          &SnapshotGroups::last_weight, ChunkEvent::weight_updated};
inline constexpr SnapshotPart kStatePart{ObjectKind::state, &GroupPlaces::state, &StepGraph::snapshot_state,
                                         &SnapshotGroups::last_state, ChunkEvent::state_updated};

/// The part of chunk c is written after its update, when a step is durable and it stays in memory at `from`.
void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from);

/// Says in which steps the chunks leave their snapshots: those whose state stays in memory in turn.
void time_snapshots(StepGraph& graph);

/// Writes a gradient that stays in memory until its update, which is the next instance's. `from`: in a buffer that
/// `made` waits for; of a chunk whose gradient stays on a device: unknown yet.
Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline);

/// To where a pass reads it, when the pass needs it: fills its buffer.
Index add_upload(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass);
/// Adds a copy from the device of what a pass has made.
Index add_download(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass);

}  // namespace spillway::plan::step
