#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

/// Place of boundary i on the device for `user` and passes up to the position `last`, and the task that copies it there
/// from `from` on the host.
struct Arrival {
  Index there = kNone, copy = kNone;
};

/// `user` gathers its input from packed rows when it begins.
Arrival add_packed(StepGraph& graph, Index from, Index user, std::uint32_t last) {
  const auto position = graph.order.position(user);
  const auto bytes = graph.out.buffers[from].bytes;
  const auto packed =
      graph.add_buffer(BufferClass::activation, bytes, graph.order.device_before(user), position, TierKind::device);
  graph.lets_go(graph.task_of(user), packed);
  const auto there =
      graph.add_buffer(BufferClass::activation, graph.boundary_buffer_bytes(), position, last, TierKind::device);
  graph.fills(graph.task_of(user), there);
  graph.out.passes[user][Operand::packed_input] = packed;
  const auto copy = add_upload(graph, {ObjectKind::boundary, 0}, {from}, {packed}, bytes, user);
  graph.out.tasks[copy].by_rows = true;
  return {there, copy};
}

Arrival add_arrival(StepGraph& graph, Index i, Index from, Index user, std::uint32_t last) {
  if (graph.is_gathered(i)) return add_packed(graph, from, user, last);
  const auto there = graph.add_buffer(BufferClass::activation, graph.boundary_buffer_bytes(),
                                      graph.order.device_before(user), last, TierKind::device);
  return {there, add_upload(graph, {ObjectKind::boundary, i}, {from}, {there}, graph.boundary_buffer_bytes(), user)};
}

/// For backward, from where it lies on the host.
void bring_back(StepGraph& graph, Index i, Index arrival) {
  const auto back = graph.order.backward[i];
  const auto [there, copy] = add_arrival(graph, i, graph.boundary_in[i], back, graph.order.position(back));
  graph.lets_go(graph.task_of(back), there);
  const auto read = graph.boundary_reads[i];
  graph.need(copy, read != kNone ? read : arrival);
  graph.out.passes[back][Operand::input] = there;
}

/// Takes the boundary activation that `maker` has made there.
Index take_boundary(StepGraph& graph, Index i, Index maker, Index there) {
  graph.fills(graph.task_of(maker), there);
  if (i > 0) graph.out.passes[maker][Operand::output] = there;
  return add_download(graph, {ObjectKind::boundary, i}, {there}, {graph.boundary_out[i]}, graph.boundary_buffer_bytes(),
                      maker);
}

/// The pass that makes a boundary for the host: the last of the embedding's, the layer before, or the caller in the
/// first layer's. Returns the buffer on the device, and the task that completes the boundary on the host.
Arrival add_forward_input(StepGraph& graph, Index i, Index last) {
  const auto& order = graph.order;
  const auto user = order.forward[i];
  const auto until = order.position(last);
  if (graph.is_gathered(i)) {
    const auto whole = graph.task_of(order.embedding.back());
    const auto [there, copy] = add_packed(graph, graph.boundary_out[0], user, until);
    graph.need(copy, whole);
    return {there, whole};
  }
  const auto maker = i > 0 ? order.forward[i - 1] : user;
  const auto there = graph.add_buffer(BufferClass::activation, graph.boundary_buffer_bytes(), order.position(maker),
                                      std::max(until, order.device_after(maker)), TierKind::device);
  return {there, take_boundary(graph, i, maker, there)};
}

void route_boundary(StepGraph& graph, Index i) {
  const auto user = graph.order.forward[i], back = graph.order.backward[i];
  const bool stays = graph.placement.boundaries[i].has_device_copy() || back == kNone;
  const auto last = stays && back != kNone ? back : user;
  const auto [there, arrival] = add_forward_input(graph, i, last);
  graph.lets_go(graph.task_of(last), there);
  graph.brings(arrival, graph.complete(i));
  graph.out.passes[user][Operand::input] = there;
  if (!stays) {
    bring_back(graph, i, arrival);
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
