#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// To a path when forward has put it together, while the next passes run, and back before backward.
void spill_saved(StepGraph& graph, Index layer) {
  const auto& order = graph.order;
  const auto forward = order.forward[layer], backward = order.backward[layer];
  const auto left = std::min(forward + graph.lookahead.backward, order.backward.back() - 1);
  const auto trip = add_round_trip(graph, BufferClass::spilled, {{ObjectKind::saved, layer}, graph.saved.spilled},
                                   {forward, backward, order.position(left)});
  graph.need(trip.write, graph.task_of(forward));
  graph.fills(graph.task_of(forward), trip.away);
  graph.lets_go(graph.task_of(backward), trip.home);
  graph.out.passes[forward].spilled = trip.away;
  graph.out.passes[backward].spilled = trip.home;
}

/// In a place of its own, which both passes use.
void keep_aside(StepGraph& graph, Index layer) {
  const auto there = graph.add_whole(BufferClass::spilled, graph.saved.spilled);
  graph.out.passes[graph.order.forward[layer]].spilled = there;
  graph.out.passes[graph.order.backward[layer]].spilled = there;
}

}  // namespace

void add_saved(StepGraph& graph) {
  const auto& order = graph.order;
  graph.out.spilled_node = graph.saved.node;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto how = graph.saved.of(order.layers[i]);
    graph.out.passes[order.forward[i]].saved = graph.out.passes[order.backward[i]].saved = how;
    if (how == Saved::spill) graph.saved.node > 0 ? keep_aside(graph, i) : spill_saved(graph, i);
  }
}

}  // namespace spillway::plan::step
