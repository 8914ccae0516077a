#include "spillway/plan/step/early.h"

namespace spillway::plan::step {
namespace {

/// The update of chunk c as soon as its gradient is complete, and room for what it changes until the step ends.
void add_early(StepGraph& graph, Index c, Index pass) {
  const auto at = graph.order.position(pass);
  const auto update = graph.out.update_task[c];
  const auto grad = graph.gradients[c];
  const auto task = graph.add(Task{.op = Op::update,
                                   .lane = Lane::update,
                                   .unit = graph.out.tasks[update].unit,
                                   .what = {ObjectKind::chunk, c},
                                   .bytes = graph.out.tasks[update].bytes,
                                   .deadline = at,
                                   .when = {.phase = Phase::early}});
  const auto bytes = graph.weight_bytes(c) + graph.out.buffers[graph.out.resident_state[c]].bytes;
  const auto undo = graph.add_buffer(BufferClass::undo, bytes, at, graph.order.positions() - 1);
  graph.fills(task, undo);
  graph.lets_go(task, undo);
  if (!graph.placement[c].gradient.in_memory()) graph.lets_go(task, grad.buffer);
  for (const auto event : {ChunkEvent::gradient_complete, ChunkEvent::gradient_refitted, ChunkEvent::snapshot_taken}) {
    graph.need(task, graph.find_event(c, event));
  }
  graph.need(update, task, true);
  graph.out.early[c] = {.task = task, .undo = undo, .grad = grad};
}

}  // namespace

bool is_early(const StepGraph& graph, Index c) {
  return graph.placement[c].when == When::early && can_be_early(graph.layout, graph.placement, c);
}

void add_early_updates(StepGraph& graph, const GradientUse& use) {
  for (auto c = use.chunks.first; c < use.chunks.end(); ++c) {
    if (graph.is_mine(c) && is_early(graph, c)) add_early(graph, c, use.made);
  }
}

}  // namespace spillway::plan::step
