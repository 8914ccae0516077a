#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// Its place on the host between the two passes: in memory, or in the buffers of its write to a path and its read back.
RoundTrip lie_aside(StepGraph& graph, Index layer) {
  const auto& order = graph.order;
  const auto forward = order.forward[layer], backward = order.backward[layer];
  if (graph.saved.home.in_memory()) {
    const auto there =
        graph.add_buffer(BufferClass::spilled, graph.saved.spilled, order.position(forward), order.position(backward));
    graph.out.buffers[there].node = graph.saved.home.node;
    return {there, there, kNone, kNone};
  }
  const auto left = std::min(forward + graph.lookahead.backward, order.backward.back() - 1);
  const auto until = graph.placement.device ? order.device_after(forward) : 0;
  return add_round_trip(graph, BufferClass::spilled, {{ObjectKind::saved, layer}, graph.saved.spilled},
                        {forward, backward, std::max(order.position(left), until)});
}

/// Passes put it there, and find it there.
void use_in_place(StepGraph& graph, Index layer, const RoundTrip& aside) {
  const auto forward = graph.order.forward[layer], backward = graph.order.backward[layer];
  graph.need(aside.write, graph.task_of(forward));
  graph.fills(graph.task_of(forward), aside.away);
  graph.lets_go(graph.task_of(backward), aside.home);
  graph.out.passes[forward][Operand::saved] = aside.away;
  graph.out.passes[backward][Operand::saved] = aside.home;
}

/// It leaves the device behind forward, and comes back ahead of backward.
void send_over_link(StepGraph& graph, Index layer, const RoundTrip& aside) {
  const auto& order = graph.order;
  const auto bytes = graph.saved.spilled;
  const auto forward = order.forward[layer], backward = order.backward[layer];
  const Object what{ObjectKind::saved, layer};
  const auto leaves = graph.add_buffer(BufferClass::spilled, bytes, order.position(forward),
                                       order.device_after(forward), TierKind::device);
  graph.fills(graph.task_of(forward), leaves);
  const auto down = add_download(graph, what, {leaves}, {aside.away}, bytes, forward);
  graph.need(aside.write, down);
  const auto comes = graph.add_buffer(BufferClass::spilled, bytes, order.device_before(backward),
                                      order.position(backward), TierKind::device);
  graph.lets_go(graph.task_of(backward), comes);
  const auto up = add_upload(graph, what, {aside.home}, {comes}, bytes, backward);
  graph.need(up, aside.read != kNone ? aside.read : down);
  graph.out.passes[forward][Operand::saved] = leaves;
  graph.out.passes[backward][Operand::saved] = comes;
}

}  // namespace

void add_saved(StepGraph& graph) {
  const auto& order = graph.order;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto how = graph.saved.of(order.layers[i]);
    graph.out.passes[order.forward[i]].saved = graph.out.passes[order.backward[i]].saved = how;
    if (how != Saved::spill) continue;
    const auto aside = lie_aside(graph, i);
    graph.placement.device ? send_over_link(graph, i, aside) : use_in_place(graph, i, aside);
  }
}

}  // namespace spillway::plan::step
