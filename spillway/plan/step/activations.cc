#include "spillway/plan/step/activation_route.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/operands.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

void add_boundary(StepGraph& graph, const ActivationUse& use) {
  const auto& home = graph.placement.boundaries[use.what.index];
  follow_activation(graph, use, home, graph.boundary_buffer_bytes(), BufferClass::activation);
  if (use.as_made != Operand::gathered_rows) return;
  for (const auto pass : graph.order.embedding) {
    graph.out.passes[pass][use.as_made] = graph.out.passes[use.made][use.as_made];
  }
}

/// For the head, or for the caller.
void add_last_boundary(StepGraph& graph) {
  const auto use = last_boundary_of(graph.order);
  const Residence home{{graph.compute_tier()}};
  follow_activation(graph, use, home, graph.boundary_buffer_bytes(), BufferClass::activation);
  const auto buffer = graph.out.passes[use.made][use.as_made];
  for (const auto* passes : {&graph.order.head_loss, &graph.order.head_gradient}) {
    for (const auto pass : *passes) graph.out.passes[pass][use.as_read] = buffer;
  }
}

/// The embedding's backward pass, which is the host's, reads a copy there.
void add_hidden_gradient(StepGraph& graph) {
  const auto use = hidden_gradient_of(graph.order);
  if (use.passes.empty()) return;
  const auto bytes = graph.boundary_buffer_bytes();
  const auto there = add_shared(graph, use, bytes);
  const auto last = use.passes.back();
  if (!graph.placement.device || !graph.computes_on_host(last)) return graph.lets_go(graph.task_of(last), there);
  const auto maker = last - 1;
  const auto here =
      graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(maker), graph.order.position(last));
  graph.lets_go(graph.task_of(last), here);
  const Move move{{ObjectKind::hidden_gradient}, {there}, {here}, bytes};
  graph.need(graph.task_of(last), take_from_pass(graph, move, maker));
  graph.out.passes[last][use.as] = here;
}

}  // namespace

void add_activations(StepGraph& graph) {
  if (has_features(graph.description, graph.layout)) {
    const auto bytes = round_up(graph.description.feature_bytes, 4096);
    follow_activation(graph, features_of(graph.order), graph.placement.features, bytes, BufferClass::features);
  }
  if (graph.description.hidden_size == 0) return;
  for (const auto& use : boundaries_of(graph.order)) add_boundary(graph, use);
  add_last_boundary(graph);
  add_hidden_gradient(graph);
}

}  // namespace spillway::plan::step
