#include <algorithm>

#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

/// Passes that read the weights of chunk c from a buffer.
std::vector<Index> readers_of(const StepGraph& graph, Index c, Index buffer) {
  std::vector<Index> out;
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    const auto reads = [&](const PassWeights& it) {
      return it.here == buffer && it.chunks.first <= c && c < it.chunks.end();
    };
    if (std::ranges::any_of(graph.out.passes[p].weights, reads)) out.push_back(p);
  }
  return out;
}

/// The master's remainder, once, as the weight comes.
void bring_remainder(StepGraph& graph, Index c, Index pass) {
  const auto bytes = state::remainders_bytes(graph.rule, graph.chunk(c));
  if (bytes == 0) return;  // the weight is the master
  auto& there = graph.out.changes[c].remainder;
  there = {graph.add_whole(BufferClass::state, bytes, TierKind::device)};
  const auto up = bring_to_pass(graph, {{ObjectKind::state, c}, graph.out.groups[c].state, there, bytes}, pass);
  graph.need(up, graph.find_event(c, ChunkEvent::state_updated));
}

void add_change(StepGraph& graph, Index c) {
  auto& out = graph.out;
  const auto readers = readers_of(graph, c, out.changes[c].weight.buffer);
  const auto first = readers.front();
  bring_remainder(graph, c, first);
  const auto bytes = state::change_bytes(graph.rule, graph.chunk(c));
  const auto last = around_update(graph, hop_between(TierKind::device, TierKind::host), c);
  const auto add = [&](TierKind tier, Bytes work) {
    return Place{graph.add_buffer(BufferClass::staging, bytes + work, graph.order.update(c), last, tier)};
  };
  auto& it = out.changes[c];
  it.here = add(TierKind::host, 0);
  it.there = add(TierKind::device, state::widened_change_bytes(graph.rule, graph.chunk(c)));
  const auto update = out.update_task[c];
  const Object what{ObjectKind::change, c};
  const auto up = add_hop(graph, Phase::update, {what, it.here, it.there, bytes}, graph.order.position(first));
  const auto apply = graph.add(Task{.op = Op::apply,
                                    .lane = Lane::device_update,
                                    .what = what,
                                    .bytes = state::apply_elements(graph.rule, graph.chunk(c)),
                                    .deadline = graph.order.position(first),
                                    .when = {.phase = Phase::update}});
  for (const auto task : {up, apply}) out.tasks[task].when.only = OnlyIf::kept_copies;
  graph.fills(update, it.here.buffer);
  graph.need(up, update);
  graph.need(update, up, true);
  graph.need(apply, up);
  graph.need(up, apply, true);
  graph.lets_go(apply, it.there.buffer);
  graph.need(graph.task_of(first), apply);
  for (const auto reader : readers) graph.need(apply, graph.task_of(reader), true);
}

}  // namespace

void add_changes(StepGraph& graph) {
  for (Index c = 0; c < graph.chunks() && !graph.out.changes.empty(); ++c) {
    if (graph.takes_change(c)) add_change(graph, c);
  }
}

}  // namespace spillway::plan::step
