#include <algorithm>
#include <tuple>

#include "spillway/plan/routes.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

/// Order of a task of the network, the same on every process: it follows from the order of passes alone. Weights for a
/// backward pass are sent before the sums of the pass before it, so that they come while that pass computes. Refits of
/// that pass follow its sums.
std::tuple<std::uint32_t, bool, Index, Op> turn_of(const StepGraph& graph, const Task& task) {
  if (follows_refit(task)) return {2 * task.deadline - 1, true, task.what.index, task.op};
  auto at = 2 * graph.order.position(task.what.index);
  if (!gathers(task.op)) {
    ++at;
  } else if (task.when.phase == Phase::backward) {
    at -= 2;
  }
  return {at, false, task.what.index, task.op};
}

}  // namespace

void order_network(StepGraph& graph) {
  auto& order = graph.out.network;
  for (Index t = 0; t < graph.out.tasks.size(); ++t) {
    if (traits(graph.out.tasks[t].lane).server == Server::network) order.push_back(t);
  }
  std::ranges::sort(order, {}, [&](Index t) { return turn_of(graph, graph.out.tasks[t]); });
}

}  // namespace spillway::plan::step
