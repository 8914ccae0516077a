#include <algorithm>
#include <vector>

#include "spillway/plan/conversion.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {

void add_block_passes(StepGraph& graph) {
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    auto& pass = graph.out.passes[p];
    pass.task = graph.add(Task{.op = Op::compute,
                               .lane = Lane::compute,
                               .what = {ObjectKind::pass, p},
                               .deadline = pass.position,
                               .when = {.phase = traits(pass.kind).phase}});
    if (p > 0) graph.need(pass.task, graph.task_of(p - 1));
  }
}

void add_converted(StepGraph& graph) {
  Bytes most = 0;
  Index first = kNone, last = kNone;
  std::vector<Index> passes;
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    const auto bytes = converted_bytes(graph.description, graph.layout, graph.out.passes[p]);
    if (bytes == 0) continue;
    most = std::max(most, bytes);
    if (first == kNone) first = p;
    last = p;
    passes.push_back(p);
  }
  if (first == kNone) return;
  const auto buffer = graph.add_buffer(BufferClass::scratch, round_up(most, 4096), graph.order.position(first),
                                       graph.order.position(last), graph.compute_tier());
  graph.fills(graph.task_of(first), buffer);
  graph.lets_go(graph.task_of(last), buffer);
  for (const auto p : passes) graph.out.passes[p][Operand::converted] = buffer;
}

}  // namespace spillway::plan::step
