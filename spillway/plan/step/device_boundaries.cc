#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// For backward, from where it lies on the host.
void bring_back(StepGraph& graph, Index i, Bytes bytes, Index arrival) {
  const auto back = graph.order.backward[i];
  const auto there = graph.add_buffer(BufferClass::activation, bytes, graph.order.device_before(back),
                                      graph.order.position(back), TierKind::device);
  graph.lets_go(graph.task_of(back), there);
  const auto task = add_upload(graph, {ObjectKind::boundary, i}, {graph.boundary_in[i]}, {there}, bytes, back);
  const auto read = graph.boundary_reads[i];
  graph.need(task, read != kNone ? read : arrival);
  graph.out.passes[back][Operand::input] = there;
}

/// The embedding's passes have left it on the host. Returns the task that completes it there.
Index gather(StepGraph& graph, Index there, Bytes bytes) {
  const auto whole = graph.task_of(graph.order.embedding.back());
  const auto up =
      add_upload(graph, {ObjectKind::boundary, 0}, {graph.boundary_out[0]}, {there}, bytes, graph.order.forward[0]);
  graph.need(up, whole);
  return whole;
}

/// Takes the boundary activation that `maker` has made there.
Index take_boundary(StepGraph& graph, Index i, Index maker, Index there, Bytes bytes) {
  graph.fills(graph.task_of(maker), there);
  if (i > 0) graph.out.passes[maker][Operand::output] = there;
  return add_download(graph, {ObjectKind::boundary, i}, {there}, {graph.boundary_out[i]}, bytes, maker);
}

void route_boundary(StepGraph& graph, Index i) {
  const auto& order = graph.order;
  const auto user = order.forward[i], back = order.backward[i];
  const bool gathered = i == 0 && !order.embedding.empty();
  const auto maker = i > 0 ? order.forward[i - 1] : user;
  const bool stays = graph.placement.boundaries[i].on_device || back == kNone;
  const auto bytes = graph.out.buffers[graph.boundary_out[i]].bytes;
  const auto last = stays && back != kNone ? back : user;
  const auto until = order.position(last);
  const auto there =
      graph.add_buffer(BufferClass::activation, bytes, gathered ? order.device_before(user) : order.position(maker),
                       gathered ? until : std::max(until, order.device_after(maker)), TierKind::device);
  graph.lets_go(graph.task_of(last), there);
  const auto arrival = gathered ? gather(graph, there, bytes) : take_boundary(graph, i, maker, there, bytes);
  graph.brings(arrival, graph.complete(i));
  graph.out.passes[user][Operand::input] = there;
  if (!stays) {
    bring_back(graph, i, bytes, arrival);
  } else if (back != kNone) {
    graph.out.passes[back][Operand::input] = there;
  }
}

}  // namespace

void add_device_boundaries(StepGraph& graph) {
  if (graph.description.hidden == 0) return;
  for (Index i = 0; i < graph.order.layers.size(); ++i) {
    if (graph.boundary_is_copied(i)) route_boundary(graph, i);
  }
}

}  // namespace spillway::plan::step
