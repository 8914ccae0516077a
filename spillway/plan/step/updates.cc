#include <algorithm>
#include <iterator>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/snapshots.h"

namespace spillway::plan::step {
namespace {

/// Bytes that a copy has brought to a device go back after the update. A snapshot is whole with both its parts, so that
/// neither of them may be taken anew before the one that was taken last is written.
void follow_update(StepGraph& graph, Index down, Index c, ChunkEvent brings) {
  graph.need(down, graph.out.update_task[c]);
  graph.need(down, graph.find_event(c, ChunkEvent::snapshot_taken), true);
  graph.brings(down, graph.find_event(c, brings));
}

/// A hop of a part of chunk c from `home` to its update, and the hop back after it. First reads for the next step begin
/// in this one. Returns the place at the end of the hop.
Place add_round(StepGraph& graph, const Hop& hop, const SnapshotPart& part, Index c, Place home) {
  const auto& order = graph.order;
  const auto& back = back_of(hop);
  const bool link = is_link(hop.lane), ahead = !link && order.comes_ahead(c);
  const Object what{part.kind, c};
  const auto bytes = traits(part.kind).bytes(graph.rule, graph.chunk(c));
  const auto last = around_update(graph, back.lane, c);
  const Place there{graph.add_buffer(BufferClass::staging, bytes, around_update(graph, hop.lane, c), last, hop.to)};
  const auto come = add_transfer(graph, hop.lane, ahead ? Phase::ahead : Phase::update, {what, home, there, bytes},
                                 order.update(c) + (ahead ? order.positions() : 0));
  const auto go = add_transfer(graph, back.lane, Phase::update, {what, there, home, bytes}, last);
  graph.fills(come, there.buffer);
  graph.lets_go(go, there.buffer);
  graph.need(come, go, !ahead);
  if (link) {
    graph.need(come, graph.find_event(c, part.read));
    graph.need(graph.out.update_task[c], come);
    follow_update(graph, go, c, part.updated);
  } else {
    graph.brings(come, graph.find_event(c, part.read), ahead);
    graph.need(go, graph.find_event(c, part.updated));
  }
  return there;
}

/// On a device it may lie behind that of the chunk before it, in one buffer.
Place keep_state(StepGraph& graph, Index c) {
  const auto in_one = graph.snapshots.state_bytes(c);
  if (graph.snapshots.with_before(c) && in_one == 0) {
    const auto& before = graph.out.groups[c - 1].state;
    return {before.buffer, before.offset + graph.state_bytes(c - 1)};
  }
  return {graph.add_whole(BufferClass::state, std::max(graph.state_bytes(c), in_one), graph.placement[c].state.kind)};
}

/// From where it lives to the update, hop by hop.
void add_state(StepGraph& graph, Index c) {
  const auto& placed = graph.placement[c];
  auto& here = graph.out.groups[c].state;
  if (placed.state.in_memory()) {
    here = keep_state(graph, c);
    if (!placed.device_resident()) graph.out.resident_state[c] = here.buffer;
    add_snapshot(graph, kStatePart, c, here);
  }
  for (const auto& hop : hops_between(placed.state.kind, placed.updated_on)) {
    auto& there = traits(hop.to).on_host ? here : graph.out.device_groups[c].state;
    there = add_round(graph, hop, kStatePart, c, here);
  }
}

/// Links the update of chunk c to the tasks before and after it. If a device updates a chunk with its master on the
/// host, copies stand between.
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

/// The chunks that a copy has brought for a pass and their updates go back after these.
void return_weights(StepGraph& graph, Index up) {
  auto& out = graph.out;
  const auto brought = out.tasks[up];
  const auto last = brought.what.end() - 1;
  const Move move{brought.what, brought.to, brought.from, brought.bytes};
  const auto down =
      add_transfer(graph, Lane::from_device, Phase::update, move, around_update(graph, Lane::from_device, last));
  if (!out.buffers[brought.to.buffer].whole) graph.lets_go(down, brought.to.buffer);
  graph.need(up, down, true);
  for (auto c = brought.what.index; c <= last; ++c) {
    graph.need(out.update_task[c], up);
    graph.need(out.update_task[c], down, true);
    follow_update(graph, down, c, ChunkEvent::weight_updated);
    out.device_groups[c].weight = {brought.to.buffer, out.groups[c].weight.offset};
  }
}

/// Gradients that lie behind one another on the host come by one copy.
std::vector<Coalesced> gradients_that_come(const StepGraph& graph) {
  const auto comes = [&](Index c) { return graph.placement[c].gradient_comes() && graph.is_trainable(c); };
  const auto host = [&](Index c) { return graph.out.groups[c].grad.buffer; };
  std::vector<Coalesced> out;
  for (Index c = 0; c < graph.chunks();) {
    Range range{c, 1};
    if (comes(c)) {
      while (range.end() < graph.chunks() && comes(range.end()) && host(range.end()) == host(c)) ++range.count;
      std::ranges::move(coalesce(range, graph.lookahead.coalesce_to, [&](Index i) { return graph.grad_bytes(i); }),
                        std::back_inserter(out));
    }
    c = range.end();
  }
  return out;
}

void bring_gradients(StepGraph& graph, const Coalesced& it) {
  auto& out = graph.out;
  const auto first = it.chunks.first, last = it.chunks.end() - 1;
  const auto here = out.groups[first].grad;
  const auto there = graph.add_buffer(BufferClass::grad, it.bytes, around_update(graph, Lane::to_device, first),
                                      graph.order.update(last), TierKind::device);
  const Move move{{ObjectKind::gradient, first, it.chunks.count}, here, {there}, it.bytes};
  const auto up = add_transfer(graph, Lane::to_device, Phase::update, move, graph.order.update(first));
  graph.fills(up, there);
  for (auto c = first; c <= last; ++c) {
    graph.need(up, graph.find_event(c, ChunkEvent::gradient_ready));
    graph.need(out.update_task[c], up);
    graph.lets_go(out.update_task[c], there);
    graph.brings(up, graph.find_event(c, ChunkEvent::gradient_used));
    out.device_groups[c].grad = {there, out.groups[c].grad.offset - here.offset};
  }
}

/// An update on a device changes what passes of the step before have read, and takes what they have made.
void wait_for_readers(StepGraph& graph, Index p) {
  const auto& pass = graph.out.passes[p];
  if (graph.computes_on_host(p)) return;
  const auto chunks = chunks_of(graph.layout, pass);
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (!graph.placement[c].device_updated() || !graph.is_mine(c)) continue;
    const bool makes = pass[Operand::gradient] != kNone && graph.placement[c].gradient_there();
    const bool keeps = graph.out.buffers[graph.out.device_groups[c].weight.buffer].whole;
    if (makes || keeps) graph.need(graph.out.update_task[c], pass.task, true);
  }
}

[[nodiscard]] bool any_comes(const Placement& placement) {
  return std::ranges::any_of(placement.chunks,
                             [](const ChunkPlacement& it) { return it.device_updated() || it.gradient_comes(); });
}

}  // namespace

void add_updates(StepGraph& graph) {
  time_snapshots(graph);
  if (any_comes(graph.placement)) graph.out.device_groups.assign(graph.chunks(), {});
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

void add_update_hops(StepGraph& graph) {
  if (!any_comes(graph.placement)) return;
  auto& out = graph.out;
  const auto hop = hops_between(TierKind::host, TierKind::device).front();
  for (const auto upload : graph.master_uploads) return_weights(graph, upload);
  for (Index c = 0; c < graph.chunks(); ++c) {
    const auto& placed = graph.placement[c];
    if (!graph.is_trainable(c)) continue;
    if (placed.device_resident() && placed.gradient_comes()) out.device_groups[c] = out.groups[c];
    if (!placed.device_updated()) continue;
    if (graph.description.is_shared()) {
      out.device_groups[c].weight = add_round(graph, hop, kWeightPart, c, out.groups[c].weight);
    }
    if (placed.gradient_there()) out.device_groups[c].grad = out.groups[c].grad;
  }
  for (const auto& it : gradients_that_come(graph)) bring_gradients(graph, it);
  for (Index p = 0; p < out.passes.size(); ++p) wait_for_readers(graph, p);
}

}  // namespace spillway::plan::step
