#include "spillway/plan/routes.h"
#include "spillway/plan/step/network.h"

namespace spillway::plan::step {

Index add_refit_gather(StepGraph& graph, Index c, Index pass, Place fields) {
  const auto& world = graph.description.world;
  const VirtualRanks ranks(graph.description.virtual_ranks, graph.description.micro_batches);
  auto before = graph.out.refit_task[c];
  for (const auto op : {Op::gather, Op::local_gather}) {
    if (!has_hops(op, world)) continue;
    Moved moved;
    each_hop(op, world, ranks.process_of_first(world.size),
             [&](std::size_t, bool sends) { moved.add(sends, graph.chunk(c).reduced.auxiliary_bytes()); });
    const auto bytes = count_moved(graph.out, op, moved);
    const auto task = graph.add(Task{.op = op,
                                     .lane = Lane::network,
                                     .what = {ObjectKind::auxiliary, c},
                                     .to = fields,
                                     .bytes = bytes,
                                     .between = crosses(op) ? bytes : 0,
                                     .deadline = graph.order.position(pass) + 1,
                                     .when = {.phase = Phase::backward}});
    graph.need(task, before);
    graph.need(task, graph.scatters[pass]);
    before = task;
  }
  return before;
}

}  // namespace spillway::plan::step
