#include "spillway/plan/step/updates.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/snapshots.h"
#include "spillway/plan/step/uses.h"
#include "spillway/plan/step/waiting_updates.h"

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
Place add_round(StepGraph& graph, const Hop& hop, const UpdatePart& part, Index c, Place home) {
  const auto& order = graph.order;
  const auto& back = back_of(hop);
  const bool waits = can_wait(graph, c), link = is_link(hop.lane), ahead = !link && !waits && order.comes_ahead(c);
  const Object what{part.kind, c};
  const auto bytes = traits(part.kind).bytes(graph.rule, graph.chunk(c));
  const auto first = waits ? order.before_update(c, graph.lookahead.state_read) : around_update(graph, hop, c);
  const auto last = end_of_wait(graph, c, around_update(graph, back, c));
  const Place there{graph.add_buffer(BufferClass::staging, bytes, first, last, hop.to)};
  const auto come = add_transfer(graph, ahead ? Phase::ahead : Phase::update, {what, home, there, bytes},
                                 order.update(c) + (ahead ? order.positions() : 0));
  const auto go = add_transfer(graph, Phase::update, {what, there, home, bytes}, last);
  graph.fills(come, there.buffer);
  graph.lets_go(go, there.buffer);
  graph.need(come, go, !ahead);
  if (waits) {
    begin_when_asked(graph, come, c);
    run_if_due(graph, go, c);
  }
  if (link) {
    graph.need(come, graph.find_event(c, part.come));
    graph.need(graph.out.update_task[c], come);
    follow_update(graph, go, c, part.done);
  } else {
    graph.brings(come, graph.find_event(c, part.come), ahead);
    graph.need(go, graph.find_event(c, part.done));
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
    add_snapshot(graph, kStateSnapshot, c, here);
  }
  for (const auto& hop : hops_between(placed.state.kind, placed.updated_on)) {
    auto& there = traits(hop.to).on_host ? here : graph.out.device_groups[c].state;
    there = add_round(graph, hop, kStatePart, c, here);
  }
}

const UpdatePart& part_of(ObjectKind kind) {
  static constexpr std::array kParts{kWeightPart, kStatePart, kGradientPart};
  return *std::ranges::find(kParts, kind, &UpdatePart::kind);
}

/// Links the update of chunk c to the tasks before and after it. If a device updates a chunk with its master on the
/// host, copies stand between. What it changes on a device is there, or leaves by a copy.
void link(StepGraph& graph, Index c, Index update) {
  const auto& placed = graph.placement[c];
  graph.need(update, graph.find_event(c, ChunkEvent::auxiliary_there));
  for (const auto& use : uses_of_update(graph.description, graph.layout, c)) {
    const auto& part = part_of(use.what);
    const bool leaves = use.access == Access::change ? placed.updated_there() : placed.gradient_comes();
    if (!leaves) graph.brings(update, graph.find_event(c, part.done));
    if (!placed.device_updated()) graph.need(update, graph.find_event(c, part.come));
  }
  if (!placed.device_updated()) graph.need(update, graph.find_event(c, ChunkEvent::snapshot_taken), true);
}

/// Room for the gradient of chunk c around its update, from position `first` on.
Place stage_gradient(StepGraph& graph, Index c, std::uint32_t first) {
  const auto last = end_of_wait(graph, c, graph.order.update(c));
  const Place out{graph.add_buffer(BufferClass::staging, graph.grad_bytes(c), first, last)};
  graph.out.groups[c].grad = out;
  graph.lets_go(graph.find_event(c, ChunkEvent::gradient_used), out.buffer);
  return out;
}

void read_gradient(StepGraph& graph, Index c) {
  const auto there = stage_gradient(graph, c, graph.order.before_update(c, graph.lookahead.weight_read));
  const Move move{{ObjectKind::gradient, c}, {}, there, graph.grad_bytes(c)};
  const auto read = add_hop(graph, Phase::update, move, graph.order.update(c));
  if (can_wait(graph, c)) {
    graph.out.tasks[read].when.only = OnlyIf::asked_before;
    graph.out.tasks[read].when.share = graph.chunk(c).asked;
  }
  graph.need(read, graph.write_grad[c], true);
  graph.brings(read, graph.find_event(c, ChunkEvent::gradient_ready));
}

/// The chunks that a copy has brought for a pass and their updates go back after these.
void return_weights(StepGraph& graph, const Hop& back, Index up) {
  auto& out = graph.out;
  const auto brought = out.tasks[up];
  const auto last = brought.what.end() - 1;
  const Move move{brought.what, brought.to, brought.from, brought.bytes};
  const auto down = add_transfer(graph, Phase::update, move, around_update(graph, back, last));
  if (!out.buffers[brought.to.buffer].whole) graph.lets_go(down, brought.to.buffer);
  graph.need(up, down, true);
  for (auto c = brought.what.index; c <= last; ++c) {
    graph.need(out.update_task[c], up);
    graph.need(out.update_task[c], down, true);
    follow_update(graph, down, c, ChunkEvent::weight_updated);
    out.device_groups[c].weight = {brought.to.buffer, out.groups[c].weight.offset};
  }
}

/// Gradients that lie behind one another on the host come together.
std::vector<Coalesced> gradients_that_come(const StepGraph& graph, const Hop& hop) {
  const auto host = [&](Index c) { return graph.out.groups[c].grad.buffer; };
  std::vector<Coalesced> out;
  for (std::size_t i = 0; i < graph.updates.size();) {
    Range range{graph.updates[i++], 1};
    if (!graph.placement[range.first].gradient_comes()) continue;
    while (i < graph.updates.size() && graph.updates[i] == range.end() && host(range.end()) == host(range.first) &&
           graph.placement[range.end()].gradient_comes()) {
      ++range.count;
      ++i;
    }
    std::ranges::move(parts_of(graph, hop, range, [&](Index c) { return graph.grad_bytes(c); }),
                      std::back_inserter(out));
  }
  return out;
}

void bring_gradients(StepGraph& graph, const Hop& hop, const Coalesced& it) {
  auto& out = graph.out;
  const auto first = it.chunks.first, last = it.chunks.end() - 1;
  const auto here = out.groups[first].grad;
  const auto there =
      graph.add_buffer(BufferClass::grad, it.bytes, around_update(graph, hop, first), graph.order.update(last), hop.to);
  const Move move{{ObjectKind::gradient, first, it.chunks.count}, here, {there}, it.bytes};
  const auto up = add_transfer(graph, Phase::update, move, graph.order.update(first));
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
    const bool copied = graph.out.buffers[graph.out.device_groups[c].weight.buffer].whole;
    if (makes || copied) graph.need(graph.out.update_task[c], pass.task, true);
  }
}

[[nodiscard]] bool any_comes(const Placement& placement) {
  return std::ranges::any_of(placement.chunks,
                             [](const ChunkPlacement& it) { return it.device_updated() || it.gradient_comes(); });
}

/// Hops over the link, to a device that updates chunks.
void cross_link(StepGraph& graph) {
  auto& out = graph.out;
  const auto& hop = hop_between(TierKind::host, TierKind::device);
  for (const auto upload : graph.master_uploads) return_weights(graph, back_of(hop), upload);
  for (const auto c : graph.updates) {
    const auto& placed = graph.placement[c];
    auto& there = out.device_groups[c];
    if (placed.device_resident() && placed.gradient_comes()) there = out.groups[c];
    if (!placed.device_updated()) continue;
    if (!there.weight.any()) there.weight = add_round(graph, hop, kWeightPart, c, out.groups[c].weight);
    if (placed.gradient_there()) there.grad = out.groups[c].grad;
  }
  for (const auto& it : gradients_that_come(graph, hop)) bring_gradients(graph, hop, it);
  for (Index p = 0; p < out.passes.size(); ++p) wait_for_readers(graph, p);
}

}  // namespace

void add_updates(StepGraph& graph) {
  time_snapshots(graph);
  if (any_comes(graph.placement)) graph.out.device_groups.assign(graph.chunks(), {});
  for (const auto c : graph.updates) {
    const auto update = graph.add(Task{.op = Op::update,
                                       .lane = graph.placement[c].updated_there() ? Lane::device_update : Lane::update,
                                       .unit = graph.placement[c].update_unit(),
                                       .what = {ObjectKind::chunk, c},
                                       .bytes = state::update_elements(graph.rule, graph.chunk(c)),
                                       .deadline = graph.order.update(c),
                                       .when = {.phase = Phase::update}});
    graph.out.update_task[c] = update;
    if (can_wait(graph, c)) begin_when_asked(graph, update, c);
    link(graph, c, update);
    add_state(graph, c);
  }
}

void read_gradients(StepGraph& graph, const GradientUse& use) {
  for (auto c = use.chunks.first; c < use.chunks.end(); ++c) {
    if (!graph.placement[c].gradient.in_memory() && graph.is_mine(c)) read_gradient(graph, c);
  }
}

void add_made_gradients(StepGraph& graph) {
  for (const auto c : graph.updates) {
    const bool makes = has_use(uses_of_update(graph.description, graph.layout, c), ObjectKind::gradient, Access::make);
    if (makes) graph.fills(graph.out.update_task[c], stage_gradient(graph, c, graph.order.update(c)).buffer);
  }
}

void add_update_hops(StepGraph& graph) {
  if (any_comes(graph.placement)) cross_link(graph);
}

}  // namespace spillway::plan::step
