#include <algorithm>

#include "spillway/plan/step/gradients.h"
#include "spillway/plan/step/network.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"
#include "spillway/plan/step/weights.h"

namespace spillway::plan::step {
namespace {

void add_backward_weights(StepGraph& graph, Index b, Index forward, Index pass) {
  const auto first = graph.chunk_of(b, 0);
  if (graph.stays(first) || graph.placement[first].weight.has_device_copy()) {
    return graph.set_weights(pass, {graph.host_weights[forward].buffer, {}});
  }
  read_again(graph, {first, static_cast<Index>(graph.block(b).chunks)}, pass, graph.lookahead.backward);
}

/// The embedding's gradient of this step's tokens: a few rows, summed in fp32, rounded once, put in place by the
/// update.
void add_rows(StepGraph& graph) {
  if (!graph.table_is_trainable()) return;
  const auto& order = graph.order;
  const auto& table = graph.block(order.embedding_block);
  const auto count = std::min(graph.description.rows_of(graph.layout, table), graph.description.all_tokens());
  const auto back = order.embedding_backward;
  const auto first = graph.description.tied_head ? order.head_gradient.front() : back;
  auto& out = graph.out;
  const auto last_maker = add_row_scatter(graph, back), first_maker = graph.maker_of(first);
  const auto sums = out.passes[back][Operand::row_sums] =
      graph.add_buffer(BufferClass::scratch, std::max<Bytes>(count, 1) * table.columns * sizeof(float),
                       order.position(first), order.position(back));
  graph.fills(first_maker, sums);
  graph.lets_go(last_maker, sums);
  const auto bytes = sparse_bytes(count, table.columns, state::field_bytes(graph.description.type).grad);
  const auto rows = out.passes[back][Operand::rows] =
      graph.add_buffer(BufferClass::grad, bytes, order.position(back),
                       order.update(graph.chunk_of(order.embedding_block, table.chunks - 1)));
  graph.fills(last_maker, rows);
  for (Bytes at = 0; graph.redo.gradients && at < bytes; at += kSparsePart) {
    const Object part{ObjectKind::sparse_gradient, static_cast<Index>(at / kSparsePart)};
    const auto log = add_gradient_log(graph, part, {rows, at}, std::min(kSparsePart, bytes - at), order.positions());
    graph.need(log, last_maker);
  }
  for (std::size_t s = 0; s < table.chunks; ++s) {
    const auto c = graph.chunk_of(order.embedding_block, s);
    if (graph.is_trainable(c)) graph.lets_go(out.update_task[c], rows);
  }
}

/// Adds the buffer of the hidden gradient. If a device computes, the embedding reads a copy on the host, and that copy
/// is the last user of the buffer.
void add_hidden_gradient(StepGraph& graph) {
  const auto& order = graph.order;
  const auto first = order.first_differentiated(), last = order.last_differentiated();
  if (graph.description.hidden == 0 || first == kNone) return;
  const auto bytes = graph.boundary_buffer_bytes();
  const auto buffer =
      graph.add_buffer(BufferClass::scratch, bytes, order.position(first), order.position(last), graph.compute_tier());
  graph.fills(graph.task_of(first), buffer);
  if (!graph.placement.device || last != order.embedding_backward) graph.lets_go(graph.task_of(last), buffer);
  for (auto p = first; p <= last; ++p) graph.out.passes[p][Operand::hidden_gradient] = buffer;
}

}  // namespace

void add_backward(StepGraph& graph) {
  const auto& order = graph.order;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto b = order.layers[i];
    add_backward_weights(graph, b, order.forward[i], order.backward[i]);
    const auto trainable = graph.block(b).trainable_chunks;
    if (trainable > 0) add_gradient(graph, order.backward[i], graph.chunk_of(b, 0), trainable);
  }
  if (graph.table_is_trainable() && !graph.description.tied_head) {
    for (Index s = 0; s < graph.block(order.embedding_block).chunks; ++s) {
      const auto c = graph.chunk_of(order.embedding_block, s);
      if (graph.is_trainable(c)) stage_gradient(graph, c);
    }
  }
  add_rows(graph);
  add_hidden_gradient(graph);
}

}  // namespace spillway::plan::step
