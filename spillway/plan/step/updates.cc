#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// On a device it may lie behind that of the chunk before it, in one buffer.
Place keep_state(StepGraph& graph, Index c) {
  const auto in_one = graph.snapshots.state_bytes(c);
  if (graph.snapshots.with_before(c) && in_one == 0) {
    const auto& before = graph.out.groups[c - 1].state;
    return {before.buffer, before.offset + graph.state_bytes(c - 1)};
  }
  return {graph.add_whole(BufferClass::state, std::max(graph.state_bytes(c), in_one), graph.placement[c].state.kind)};
}

/// It comes before the update and goes back after it: first reads for the next step begin in this one.
Place stage_state(StepGraph& graph, Index c) {
  const auto& order = graph.order;
  const auto bytes = graph.state_bytes(c);
  const bool ahead = c < graph.lookahead.state_read;
  const auto first = ahead ? order.backward_start() : order.before_update(c, graph.lookahead.state_read);
  const auto last = order.after_update(c);
  const Place there{graph.add_buffer(BufferClass::staging, bytes, first, last)};
  const auto read = add_read(graph, {ObjectKind::state, c}, there, bytes,
                             order.update(c) + (ahead ? order.positions() : 0), ahead ? Phase::ahead : Phase::update);
  const auto write = add_write(graph, {ObjectKind::state, c}, there, bytes, last, Phase::update);
  graph.need(read, write, !ahead);
  graph.need(write, graph.find_event(c, ChunkEvent::state_updated));
  graph.brings(read, graph.find_event(c, ChunkEvent::state_read), ahead);
  return there;
}

void add_state(StepGraph& graph, Index c) {
  auto& place = graph.out.groups[c].state;
  if (!graph.placement[c].state.in_memory()) {
    place = stage_state(graph, c);
    return;
  }
  place = keep_state(graph, c);
  if (!graph.placement[c].device_resident()) graph.out.resident_state[c] = place.buffer;
  add_snapshot(graph, kStatePart, c, place);
}

/// Links the update of chunk c to the tasks before and after it. If a device updates a chunk with its master on the
/// host, copies stand between (add_device_updates).
void link(StepGraph& graph, Index c, Index update) {
  const auto brings = [&](ChunkEvent event) { graph.brings(update, graph.find_event(c, event)); };
  graph.need(update, graph.find_event(c, ChunkEvent::auxiliary_there));
  if (!graph.placement[c].gradient_comes()) brings(ChunkEvent::gradient_used);
  if (graph.placement[c].device_updated()) return;
  for (const auto event : {ChunkEvent::weight_read, ChunkEvent::state_read, ChunkEvent::gradient_ready}) {
    graph.need(update, graph.find_event(c, event));
  }
  graph.need(update, graph.find_event(c, ChunkEvent::snapshot_taken), true);
  if (graph.placement[c].device_resident()) return;  // its snapshots leave by copies
  brings(ChunkEvent::weight_updated);
  brings(ChunkEvent::state_updated);
}

}  // namespace

void add_updates(StepGraph& graph) {
  time_snapshots(graph);
  for (Index c = 0; c < graph.chunks(); ++c) {
    if (!graph.is_trainable(c)) continue;
    const bool there = graph.placement[c].updated_there();
    const auto update = graph.add(Task{.op = Op::update,
                                       .lane = there ? Lane::device_update : Lane::update,
                                       .unit = graph.placement[c].update_unit(),
                                       .what = {ObjectKind::chunk, c},
                                       .bytes = state::update_elements(graph.rule, graph.chunk(c)),
                                       .deadline = graph.order.update(c),
                                       .when = {.phase = Phase::update}});
    graph.out.update_task[c] = update;
    link(graph, c, update);
    add_state(graph, c);
  }
}

}  // namespace spillway::plan::step
