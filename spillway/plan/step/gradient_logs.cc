#include "spillway/plan/step/gradients.h"
#include "spillway/plan/step/hops.h"

namespace spillway::plan::step {
namespace {

/// The gradients of a pass, to the paths: from where they wait for their updates, over staging where they take two
/// hops.
class GradientLog {
 public:
  GradientLog(StepGraph& graph, const GradientUse& use) : graph_(graph), use_(use) {}

  void run() {
    const auto& home = home_of(graph_, use_);
    if (!home.in_memory()) return;
    const auto hops = hops_between(home.kind, TierKind::storage);
    if (hops.size() > 1) stage(hops.front());
    for (auto c = use_.chunks.first; c < use_.chunks.end(); ++c) {
      if (graph_.is_mine(c)) write_gradient(graph_, c, staging_ != kNone ? write_staged(c) : write_kept(c));
    }
  }

 private:
  void stage(const Hop& hop) {
    const auto pass = use_.made, from = graph_.gradients[use_.chunks.first].buffer;
    const auto until = around_pass(graph_, hop, pass);
    staging_ = graph_.add_buffer(BufferClass::grad, graph_.out.buffers[from].bytes, graph_.order.position(pass), until);
    for (const auto& it :
         parts_of(graph_, hop, use_.chunks, [this](Index c) { return count_gradient_bytes(graph_, c); })) {
      const Object what{ObjectKind::gradient, it.chunks.first, it.chunks.count};
      const Move move{what, {from, it.at}, {staging_, it.at}, it.bytes};
      const auto copy = add_transfer(graph_, Phase::backward, move, until);
      graph_.need(copy, graph_.task_of(pass));
      graph_.out.buffers[from].earlier_tasks.push_back(copy);
      graph_.fills(copy, staging_);
      for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
        graph_.brings(copy, graph_.find_event(c, ChunkEvent::gradient_complete));
      }
    }
  }

  Index write_staged(Index c) {
    const Place from{staging_, graph_.gradients[c].offset};
    return add_hop(graph_, Phase::backward, {{ObjectKind::gradient, c}, from, {}, graph_.grad_bytes(c)},
                   graph_.out.buffers[staging_].last);
  }

  Index write_kept(Index c) {
    const auto out = add_gradient_log(graph_, {ObjectKind::gradient, c}, graph_.gradients[c], graph_.grad_bytes(c),
                                      graph_.order.positions());
    const bool adds = has_use(uses_of_update(graph_.description, graph_.layout, c), ObjectKind::gradient, Access::add);
    if (adds) graph_.need(graph_.out.update_task[c], out, true);
    return out;
  }

  StepGraph& graph_;
  const GradientUse& use_;
  Index staging_ = kNone;
};

}  // namespace

bool may_be_left(const StepGraph& graph, Index c) {
  return graph.chunk(c).asked < 1 && !graph.redo.gradients && !graph.description.is_shared();
}

Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline) {
  const auto write = add_transfer(graph, Phase::backward, {what, from, {}, bytes}, deadline);
  graph.out.buffers[from.buffer].earlier_tasks.push_back(write);
  return write;
}

void log_gradients(StepGraph& graph, const GradientUse& use) {
  if (graph.redo.gradients) GradientLog(graph, use).run();
}

}  // namespace spillway::plan::step
