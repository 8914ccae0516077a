#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// One copy for the snapshots of neighbours, to staging that they are written from.
void add_snapshot_copy(StepGraph& graph, ObjectKind kind, Range chunks) {
  const bool weight = kind == ObjectKind::weight;
  const auto& writes = weight ? graph.snapshot_weight : graph.snapshot_state;
  if (writes[chunks.first] == kNone) return;
  const auto& tasks = graph.out.tasks;
  Bytes bytes = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) bytes += tasks[writes[c]].bytes;
  const auto last = chunks.end() - 1;
  const auto until = graph.order.device_after_update(last);
  const auto staging = graph.add_buffer(BufferClass::staging, bytes, graph.order.update(last), until);
  const auto& first = tasks[writes[chunks.first]];
  const auto& groups = graph.out.groups[chunks.first];
  const auto copy = graph.add(Task{.op = Op::transfer,
                                   .lane = Lane::from_device,
                                   .what = {kind, chunks.first, chunks.count},
                                   .from = weight ? groups.weight : groups.state,
                                   .to = {staging},
                                   .bytes = bytes,
                                   .deadline = until,
                                   .phase = first.phase,
                                   .every = first.every,
                                   .turn = first.turn});
  graph.fills(copy, staging);
  Bytes at = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    graph.need(copy, graph.out.update_task[c]);
    graph.brings(copy, graph.of(c, weight ? ChunkEvent::weight_updated : ChunkEvent::state_updated));
    graph.brings(copy, graph.of(c, ChunkEvent::snapshot_taken));
    graph.place(writes[c], {staging, at});
    graph.lets_go(writes[c], staging);
    at += tasks[writes[c]].bytes;
  }
}

}  // namespace

void add_device_snapshots(StepGraph& graph) {
  for (const auto& group : graph.snapshots.groups()) {
    add_snapshot_copy(graph, ObjectKind::weight, group.chunks);
    for (const auto& it : group.states) add_snapshot_copy(graph, ObjectKind::state, it.chunks);
  }
}

}  // namespace spillway::plan::step
