#include "spillway/plan/step/operands.h"

#include <algorithm>

#include "spillway/plan/conversion.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

void add_head_sums(StepGraph& graph) {
  const auto use = head_sums_of(graph.order);
  const auto elements = round_up(graph.description.tokens * graph.description.hidden_size, 2048);
  if (use.passes.empty() || elements == 0) return;
  graph.lets_go(graph.task_of(use.passes.back()), add_shared(graph, use, elements * sizeof(float)));
}

void add_converted(StepGraph& graph) {
  Bytes most = 0;
  SharedUse use{Operand::converted, {}};
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    const auto bytes = converted_bytes(graph.description, graph.layout, graph.out.passes[p]);
    if (bytes == 0) continue;
    most = std::max(most, bytes);
    use.passes.push_back(p);
  }
  if (use.passes.empty()) return;
  graph.lets_go(graph.task_of(use.passes.back()), add_shared(graph, use, round_up(most, 4096)));
}

}  // namespace

Index add_shared(StepGraph& graph, const SharedUse& use, Bytes bytes) {
  const auto first = use.passes.front(), last = use.passes.back();
  const auto buffer = graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(first),
                                       graph.order.position(last), graph.compute_tier());
  graph.fills(graph.task_of(first), buffer);
  for (const auto pass : use.passes) graph.out.passes[pass][use.as] = buffer;
  return buffer;
}

void add_operands(StepGraph& graph) {
  add_head_sums(graph);
  add_converted(graph);
}

}  // namespace spillway::plan::step
