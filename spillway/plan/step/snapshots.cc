#include "spillway/plan/step/snapshots.h"

#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"

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
  const auto until = around_update(graph, Lane::from_device, last);
  const auto staging = graph.add_buffer(BufferClass::staging, bytes, graph.order.update(last), until);
  const Object what{part.kind, chunks.first, chunks.count};
  const auto from = graph.out.groups[chunks.first].*part.place;
  const auto copy = add_transfer(graph, Lane::from_device, Phase::update, {what, from, {staging}, bytes}, until);
  graph.out.tasks[copy].when.every = graph.out.snapshot_every[chunks.first];
  graph.out.tasks[copy].when.turn = graph.out.snapshot_turn[chunks.first];
  graph.fills(copy, staging);
  Bytes at = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    graph.need(copy, graph.out.update_task[c]);
    graph.brings(copy, graph.find_event(c, part.updated));
    graph.brings(copy, graph.find_event(c, ChunkEvent::snapshot_taken));
    graph.place(writes[c], {staging, at});
    graph.lets_go(writes[c], staging);
    at += tasks[writes[c]].bytes;
  }
}

}  // namespace

void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from) {
  if (!graph.redo.gradients) return;
  const bool resident = graph.placement[c].device_resident();
  const auto& order = graph.order;
  const auto deadline = resident            ? around_update(graph, Lane::from_device, (graph.snapshots.*part.last)(c))
                        : graph.is_early(c) ? order.position(order.pass_of_gradient(c))
                                            : order.update(c) + order.positions();
  const Move move{{part.kind, c}, resident ? Place{} : from, {}, traits(part.kind).bytes(graph.rule, graph.chunk(c))};
  const auto write = add_transfer(graph, Lane::write, Phase::update, move, deadline);
  graph.out.tasks[write].when.every = graph.out.snapshot_every[c];
  graph.out.tasks[write].when.turn = graph.out.snapshot_turn[c];
  if (!resident) graph.brings(write, graph.find_event(c, ChunkEvent::snapshot_taken));
  graph.need(write, graph.find_event(c, part.updated));
  (graph.*part.writes)[c] = write;
}

void time_snapshots(StepGraph& graph) {
  auto& every = graph.out.snapshot_every;
  auto& turn = graph.out.snapshot_turn;
  every.assign(graph.chunks(), 0);
  turn.assign(graph.chunks(), 0);
  std::uint32_t next = 0;
  for (Index c = 0; c < graph.chunks() && graph.redo.gradients; ++c) {
    if (!graph.is_trainable(c)) continue;
    every[c] = graph.placement[c].state.in_memory() ? graph.redo.period : 1;
    if (!graph.placement[c].state.in_memory()) continue;
    turn[c] = graph.snapshots.with_before(c) ? turn[c - 1] : next++ % graph.redo.period;
  }
}

void add_snapshot_hops(StepGraph& graph) {
  for (const auto& group : graph.snapshots.groups()) {
    add_snapshot_copy(graph, kWeightPart, group.chunks);
    for (const auto& it : group.states) add_snapshot_copy(graph, kStatePart, it.chunks);
  }
}

}  // namespace spillway::plan::step
