#include "spillway/plan/step/activation_route.h"
#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {

void add_saved(StepGraph& graph) {
  const auto& order = graph.order;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto how = graph.saved.of(order.layers[i]);
    graph.out.passes[order.forward[i]].saved = graph.out.passes[order.backward[i]].saved = how;
  }
  for (const auto& use : saved_of(order, graph.saved)) {
    follow_activation(graph, use, Residence{graph.saved.home}, graph.saved.spilled, BufferClass::spilled);
  }
}

}  // namespace spillway::plan::step
