#include <algorithm>

#include "spillway/plan/reduced_share.h"
#include "spillway/plan/routes.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {
namespace {

class RefitHops {
 public:
  explicit RefitHops(StepGraph& graph) : graph_(graph), out_(graph.out) {}

  void run() {
    if (!add_change()) return;
    for (const auto pass : graph_.order.backward) {
      if (pass != kNone) passes_.push_back(pass);
    }
    for (auto it = passes_.rbegin(); it != passes_.rend(); ++it) add(out_.passes[*it]);
  }

 private:
  /// The change of one S, and room to round it: one update runs at a time. False: no such matrix is updated there.
  bool add_change() {
    Bytes most = 0;
    for (Index c = 0; c < graph_.chunks(); ++c) {
      if (!graph_.placement[c].updated_there()) continue;
      const auto& chunk = graph_.chunk(c);
      const auto rounded = state::widened_change_bytes(graph_.rule, chunk) > 0 ? change_bytes(graph_.rule, chunk) : 0;
      most = std::max(most, chunk.reduced.elements() * sizeof(float) + rounded);
    }
    if (most == 0) return false;
    const Place change{graph_.add_whole(BufferClass::scratch, most, TierKind::device)};
    for (Index c = 0; c < graph_.chunks(); ++c) {
      const bool any = graph_.placement[c].updated_there() && graph_.chunk(c).reduced.any();
      if (any) out_.groups[c].change = change;
    }
    return true;
  }

  void add(const Pass& pass) {
    const auto all = chunks_of(graph_.layout, pass);
    std::vector<Index> chunks;
    for (auto c = all.first; c < all.end(); ++c) {
      if (out_.refit_task[c] != kNone && graph_.placement[c].gradient_there()) chunks.push_back(c);
    }
    if (chunks.empty()) return;
    if (graph_.write_grad[chunks.front()] != kNone) {
      for (const auto c : chunks) bring(c, logged(c));
      return;
    }
    Place place{stage(pass, chunks)};
    for (const auto c : chunks) {
      bring(c, place);
      place.offset += reduced(c).auxiliary_bytes();
    }
  }

  [[nodiscard]] const optim::Reduced& reduced(Index c) const { return graph_.chunk(c).reduced; }
  /// Auxiliary fields in a gradient.
  [[nodiscard]] Place behind(Place gradient, Index c) const {
    return {gradient.buffer, gradient.offset + gradient_value_bytes(graph_.rule, graph_.chunk(c))};
  }
  [[nodiscard]] Place on_device(Index c) const { return behind(out_.groups[c].grad, c); }
  /// In the copy of its gradient that goes to a path, behind the refit.
  [[nodiscard]] Place logged(Index c) const { return behind(out_.tasks[graph_.write_grad[c]].from, c); }

  /// For auxiliary fields alone, one behind the other.
  Index stage(const Pass& pass, const std::vector<Index>& chunks) {
    Bytes bytes = 0;
    for (const auto c : chunks) bytes += reduced(c).auxiliary_bytes();
    const auto here = graph_.add_buffer(BufferClass::grad, bytes, pass.position, graph_.order.positions() - 1);
    const auto first = chunks.front();
    const auto arrival = add_copy({ObjectKind::refit_record, first, chunks.back() - first + 1}, on_device(first),
                                  {here}, reduced(first).by->record, first);
    graph_.need(arrival, pass.task);
    graph_.fills(arrival, here);
    for (const auto c : chunks) graph_.brings(arrival, graph_.find_event(c, ChunkEvent::gradient_complete));
    return here;
  }

  /// Between the host and a gradient on the device. Its deadline is that of chunk c's refit.
  Index add_copy(Object what, Place from, Place to, Bytes bytes, Index c) {
    const auto deadline = out_.tasks[out_.refit_task[c]].deadline;
    const auto task = add_transfer(graph_, Phase::backward, {what, from, to, bytes}, deadline);
    out_.buffers[out_.tasks[task].on_device().buffer].earlier_tasks.push_back(task);
    return task;
  }

  /// Its values: the record there is that of the pass.
  void bring(Index c, Place place) {
    const auto refit = out_.refit_task[c];
    out_.tasks[refit].to = place;
    const auto record = reduced(c).by->record;
    const auto there = on_device(c);
    const auto up = add_copy({ObjectKind::auxiliary, c}, {place.buffer, place.offset + record},
                             {there.buffer, there.offset + record}, reduced(c).refitted_bytes(), c);
    graph_.need(up, refit);
    graph_.lets_go(up, place.buffer);
    graph_.brings(up, graph_.find_event(c, ChunkEvent::auxiliary_there), true);
  }

  StepGraph& graph_;
  Schedule& out_;
  std::vector<Index> passes_;  ///< backward, of the lowest layer first
};

/// Auxiliary fields that one process has refitted for chunk c, to all others behind the sums of the pass, and to
/// `fields` in the chunk's gradient where this process has the chunk. Returns the last task.
Index add_refit_gather(StepGraph& graph, Index c, Index pass, Place fields) {
  const auto& run = graph.description;
  const auto owner = VirtualRanks(run.virtual_ranks, run.micro_batches).process_of_first(run.world.size);
  const Task task{.what = {ObjectKind::auxiliary, c},
                  .to = fields,
                  .deadline = graph.order.position(pass) + 1,
                  .when = {.phase = Phase::backward}};
  const auto legs = add_legs(graph, hop_between(TierKind::peer, TierKind::host), task, [&](Op leg, Moved& moved) {
    moved.add(leg, run.world, owner, graph.chunk(c).reduced.auxiliary_bytes());
  });
  graph.need(legs.first, graph.out.refit_task[c]);
  graph.need(legs.first, graph.scatters[pass].last);
  return legs.last;
}

/// A background refit that the pass has left for chunk c joins its gradient before any task reads the gradient. Each of
/// several processes may have to refit, and one without the chunk has no `grad`.
void add_refit(StepGraph& graph, Index c, Index pass, Place grad) {
  const bool shared = graph.description.is_shared();
  Place there;
  if (grad.any()) there = {grad.buffer, grad.offset + gradient_value_bytes(graph.rule, graph.chunk(c))};
  const auto refit = graph.add(Task{.op = Op::refit,
                                    .lane = Lane::refit,
                                    .what = {ObjectKind::auxiliary, c},
                                    .to = shared || graph.placement[c].gradient_there() ? Place{} : there,
                                    .bytes = refit_elements(graph.description.refits, graph.chunk(c)),
                                    .deadline = graph.order.update(c) + graph.order.positions(),
                                    .when = {.phase = Phase::backward}});
  graph.out.refit_task[c] = refit;
  if (shared) {
    graph.need(refit, graph.downloads[pass] != kNone ? graph.downloads[pass] : graph.task_of(pass));
  } else {
    graph.need(refit, graph.find_event(c, ChunkEvent::gradient_complete));
  }
  const auto done = shared ? add_refit_gather(graph, c, pass, there) : refit;
  graph.brings(done, graph.find_event(c, ChunkEvent::gradient_ready), true);
  graph.brings(done, graph.find_event(c, ChunkEvent::gradient_refitted));
}

}  // namespace

void add_refits(StepGraph& graph) {
  for (const auto& use : gradients_of(graph.order, graph.layout)) {
    for (auto c = use.chunks.first; c < use.chunks.end(); ++c) {
      if (graph.chunk(c).reduced.any()) add_refit(graph, c, use.made, graph.gradients[c]);
    }
  }
}

void add_refit_hops(StepGraph& graph) {
  RefitHops(graph).run();
}

}  // namespace spillway::plan::step
