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

}  // namespace spillway::plan::step
