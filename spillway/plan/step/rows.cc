#include <algorithm>

#include "spillway/plan/step/gradients.h"
#include "spillway/plan/step/network.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/updates.h"

namespace spillway::plan::step {
namespace {

/// The embedding's gradient of this step's tokens: a few rows, summed in fp32, rounded once, put in place by the
/// update.
void add_row_sums(StepGraph& graph, const SharedUse& use) {
  const auto& order = graph.order;
  const auto& table = graph.block(order.embedding_block);
  const auto count = std::min(graph.description.rows_of(graph.layout, table), graph.description.all_tokens());
  const auto first = use.passes.front(), back = use.passes.back();
  auto& out = graph.out;
  const auto last_maker = add_row_scatter(graph, use), first_maker = graph.maker_of(first);
  const auto sums = out.passes[back][use.as] =
      graph.add_buffer(BufferClass::scratch, std::max<Bytes>(count, 1) * table.columns * sizeof(float),
                       order.position(first), order.position(back));
  graph.fills(first_maker, sums);
  graph.lets_go(last_maker, sums);
  const auto bytes = sparse_bytes(count, table.columns, state::field_bytes(graph.description.weight_dtype).grad);
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

}  // namespace

void add_rows(StepGraph& graph) {
  const auto use = row_sums_of(graph.order);
  if (use.passes.empty()) return;
  add_made_gradients(graph);
  add_row_sums(graph, use);
}

}  // namespace spillway::plan::step
