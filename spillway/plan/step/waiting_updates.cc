#include "spillway/plan/step/waiting_updates.h"

#include <algorithm>

#include "spillway/plan/step/early.h"
#include "spillway/plan/step/gradients.h"

namespace spillway::plan::step {

bool can_wait(const StepGraph& graph, Index c) {
  const auto& chunk = graph.chunk(c);
  const auto& placed = graph.placement[c];
  const bool by_element = chunk.training == state::Training::full && !chunk.whole;
  const bool on_host = !placed.updated_there() && !placed.device_resident() && !placed.weight.has_device_copy();
  return by_element && on_host && may_be_left(graph, c) && !is_early(graph, c);
}

void run_if_due(StepGraph& graph, Index task, Index c) {
  const auto unasked = 1 - graph.chunk(c).asked;
  auto& when = graph.out.tasks[task].when;
  when.only = OnlyIf::due;
  when.share = 1 - unasked * unasked;  // steps that ask for it, and those after them
}

void begin_when_asked(StepGraph& graph, Index task, Index c) {
  run_if_due(graph, task, c);
  graph.out.passes[graph.order.forward_of(c)].asks.push_back(task);
}

void bring_when_asked(StepGraph& graph, Index c, Index read, Index write) {
  begin_when_asked(graph, read, c);
  graph.out.tasks[read].when.only = OnlyIf::due_or_asked;
  run_if_due(graph, write, c);
}

void wait_for_update(StepGraph& graph, Index pass, Index c) {
  const bool again = traits(graph.out.passes[pass].kind).phase == Phase::backward;
  if (again == can_wait(graph, c)) graph.need(graph.task_of(pass), graph.out.update_task[c]);
}

std::uint32_t end_of_wait(const StepGraph& graph, Index c, std::uint32_t least) {
  return can_wait(graph, c) ? std::max(least, graph.order.position(graph.order.forward_of(c))) : least;
}

}  // namespace spillway::plan::step
