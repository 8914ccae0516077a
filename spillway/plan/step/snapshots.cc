#include "spillway/plan/step/snapshots.h"

#include "spillway/plan/step/early.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

/// Position by which a part of chunk c has to be written, or to be away from the device that it lives on.
std::uint32_t written_by(const StepGraph& graph, const SnapshotPart& part, Index c) {
  const auto& order = graph.order;
  if (graph.placement[c].device_resident()) {
    return around_update(graph, hop_between(TierKind::device, TierKind::host), (graph.snapshots.*part.last)(c));
  }
  if (is_early(graph, c)) return order.position(order.pass_of_gradient(c));
  return order.update(c) + order.positions();
}

}  // namespace

void time_snapshots(StepGraph& graph) {
  auto& every = graph.out.snapshot_every;
  auto& turn = graph.out.snapshot_turn;
  every.assign(graph.chunks(), 0);
  turn.assign(graph.chunks(), 0);
  if (!graph.redo.gradients) return;
  std::uint32_t next = 0;
  for (const auto c : graph.updates) {
    every[c] = graph.placement[c].state.in_memory() ? graph.redo.period : 1;
    if (!graph.placement[c].state.in_memory()) continue;
    turn[c] = graph.snapshots.with_before(c) ? turn[c - 1] : next++ % graph.redo.period;
  }
}

void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from) {
  if (!graph.redo.gradients) return;
  const bool resident = graph.placement[c].device_resident();  // copies will say where it is written from
  const Move move{{part.of.kind, c}, from, {}, traits(part.of.kind).bytes(graph.rule, graph.chunk(c))};
  const auto write = add_transfer(graph, Phase::update, move, written_by(graph, part, c));
  graph.out.tasks[write].when.every = graph.out.snapshot_every[c];
  graph.out.tasks[write].when.turn = graph.out.snapshot_turn[c];
  if (!resident) graph.brings(write, graph.find_event(c, ChunkEvent::snapshot_taken));
  graph.need(write, graph.find_event(c, part.of.done));
  (graph.*part.writes)[c] = write;
}

}  // namespace spillway::plan::step
