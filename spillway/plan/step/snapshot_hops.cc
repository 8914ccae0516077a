#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/snapshots.h"

namespace spillway::plan::step {
namespace {

/// One copy for the snapshots of neighbours, to staging that they are written from.
void add_snapshot_copy(StepGraph& graph, const SnapshotPart& part, Range chunks) {
  const auto& writes = graph.*part.writes;
  if (writes[chunks.first] == kNone) return;
  const auto& tasks = graph.out.tasks;
  Bytes bytes = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) bytes += tasks[writes[c]].bytes;
  const auto last = chunks.end() - 1;
  const auto until = around_update(graph, hop_between(TierKind::device, TierKind::host), last);
  const auto staging = graph.add_buffer(BufferClass::staging, bytes, graph.order.update(last), until);
  const Object what{part.of.kind, chunks.first, chunks.count};
  const auto from = graph.out.groups[chunks.first].*part.of.place;
  const auto copy = add_transfer(graph, Phase::update, {what, from, {staging}, bytes}, until);
  graph.out.tasks[copy].when.every = graph.out.snapshot_every[chunks.first];
  graph.out.tasks[copy].when.turn = graph.out.snapshot_turn[chunks.first];
  graph.fills(copy, staging);
  Bytes at = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    graph.need(copy, graph.out.update_task[c]);
    graph.brings(copy, graph.find_event(c, part.of.done));
    graph.brings(copy, graph.find_event(c, ChunkEvent::snapshot_taken));
    graph.out.tasks[writes[c]].from = {staging, at};
    graph.lets_go(writes[c], staging);
    at += tasks[writes[c]].bytes;
  }
}

}  // namespace

void add_snapshot_hops(StepGraph& graph) {
  for (const auto& group : graph.snapshots.groups()) {
    add_snapshot_copy(graph, kWeightSnapshot, group.chunks);
    for (const auto& it : group.states) add_snapshot_copy(graph, kStateSnapshot, it.chunks);
  }
}

}  // namespace spillway::plan::step
