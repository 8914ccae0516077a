#include "spillway/plan/step/gradients.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/weights.h"

namespace spillway::plan::step {
namespace {

/// For the two passes over a slice. Of the last slice (`turn`) the second pass finds what the first has left.
void add_slice_weights(StepGraph& graph, Index slice, Index loss, Index gradient, bool turn) {
  const auto c = graph.chunk_of(graph.order.head, slice);
  const bool stays = graph.stays(c) || graph.placement[c].weight.has_device_copy();
  const auto until = turn && !stays ? graph.order.position(gradient) : 0;
  if (!graph.description.tied_head) {
    add_slice_forward(graph, graph.order.head, slice, loss, until);
  } else {
    graph.need(graph.task_of(loss), graph.out.update_task[c]);
    if (graph.stays(c)) {
      graph.set_weights(loss, {graph.out.resident_slice[c], {}});
    } else {
      read_again(graph, {c, 1}, loss, graph.lookahead.head, until);
    }
  }
  if (!stays && !turn) return read_again(graph, {c, 1}, gradient, graph.lookahead.head);
  const auto weights = graph.host_weights[loss].buffer;
  if (!stays && graph.computes_on_host(gradient)) graph.lets_go(graph.task_of(gradient), weights);
  graph.set_weights(gradient, {weights, {}});
}

/// The gradient of hidden states is summed in fp32 over the head's slices.
void add_accumulator(StepGraph& graph) {
  const auto& order = graph.order;
  const auto elements = round_up(graph.description.tokens * graph.description.hidden, 2048);
  if (elements == 0) return;
  const auto first = order.head_gradient.front();
  const auto last = order.any_backward() ? order.backward.back() : order.head_gradient.back();
  const auto buffer = graph.add_buffer(BufferClass::scratch, elements * sizeof(float), order.position(first),
                                       order.position(last), graph.compute_tier());
  graph.fills(graph.task_of(first), buffer);
  graph.lets_go(graph.task_of(last), buffer);
  for (auto p = first; p <= last; ++p) graph.out.passes[p][Operand::head_sums] = buffer;
}

}  // namespace

void add_head(StepGraph& graph) {
  const auto& order = graph.order;
  if (order.head == kNone) return;
  const auto slices = static_cast<Index>(graph.block(order.head).chunks);
  for (Index s = 0; s < slices; ++s) {
    const auto loss = order.head_loss[s];
    const auto gradient = order.head_gradient[slices - 1 - s];
    add_slice_weights(graph, s, loss, gradient, s + 1 == slices);
    if (graph.block(order.head).trainable_chunks > 0) add_gradient(graph, gradient, graph.chunk_of(order.head, s), 1);
    if (graph.description.hidden != 0) {
      graph.out.passes[loss][Operand::input] = graph.out.passes[gradient][Operand::input] = graph.boundary_in.back();
    }
  }
  add_accumulator(graph);
}

}  // namespace spillway::plan::step
