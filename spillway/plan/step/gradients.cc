#include "spillway/plan/step/gradients.h"

#include <algorithm>

#include "spillway/plan/step/early.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/network.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/updates.h"
#include "spillway/plan/step/waiting_updates.h"

namespace spillway::plan::step {
namespace {

constexpr Bytes kPage = 4096;

/// The gradients of a pass, from where they are complete to their home, which they share.
class GradientRoute {
 public:
  GradientRoute(StepGraph& graph, const GradientUse& use)
      : graph_(graph),
        order_(graph.order),
        use_(use),
        home_(home_of(graph, use)),
        made_(graph.completes_on_host(use.made) ? TierKind::host : graph.compute_tier()),
        hops_(hops_between(made_, home_.kind)) {
    for (auto c = use.chunks.first; c < use.chunks.end(); ++c) bytes_ += count_gradient_bytes(graph, c);
  }

  /// The place that they stay at, or leave from for a path.
  void add_last_place() {
    const auto landing = std::ranges::find_if(hops_, [](const Hop& it) { return traits(it.to).in_memory; });
    last_ = landing == hops_.end() ? add_place(0, made_)
                                   : add_place(static_cast<std::size_t>(landing - hops_.begin()) + 1, landing->to);
  }

  void run() {
    auto at = make();
    for (std::size_t i = 0; i < hops_.size(); ++i) at = leave(i, at);
    settle(at);
  }

 private:
  [[nodiscard]] Event event(Index c, ChunkEvent what) const { return graph_.find_event(c, what); }

  /// Position up to which gradients lie where they leave by hop i; behind the last hop: at home.
  [[nodiscard]] std::uint32_t leaves_by(std::size_t i) const {
    if (bytes_ == 0) return around_pass(graph_, hop_between(TierKind::host, TierKind::peer), use_.made);
    if (i == hops_.size()) return lives_until();
    const auto& hop = hops_[i];
    return traits(hop.to).in_memory ? around_pass(graph_, hop, use_.made) : order_.after_gradient(use_.made);
  }

  /// Position of the last update that reads them at home.
  [[nodiscard]] std::uint32_t lives_until() const {
    auto last = order_.update(use_.chunks.end() - 1);
    for (auto c = use_.chunks.first; c < use_.chunks.end(); ++c) last = end_of_wait(graph_, c, last);
    return last;
  }

  /// The place before hop i.
  Index add_place(std::size_t i, TierKind tier) {
    const auto out = graph_.add_buffer(BufferClass::grad, bytes_ > 0 ? bytes_ : kPage, order_.position(use_.made),
                                       leaves_by(i), tier);
    if (traits(tier).on_host) graph_.out.buffers[out].node = graph_.placement[use_.chunks.first].gradient.node;
    return out;
  }

  Index make() {
    const bool stays = hops_.empty() || !traits(hops_.front().to).in_memory;
    const auto out = stays ? last_ : add_place(0, made_);
    const auto maker = graph_.maker_of(use_.made);
    graph_.fills(maker, out);
    graph_.out.passes[use_.made][Operand::gradient] = out;
    if (bytes_ == 0) graph_.lets_go(maker, out);
    return out;
  }

  Index leave(std::size_t i, Index from) {
    const auto& hop = hops_[i];
    const bool arrives = traits(hop.to).in_memory, ends = i + 1 == hops_.size();
    const auto to = arrives ? last_ : kNone;
    const auto separate = [&](Index c) { return is_asked(c) || is_asked(c - 1); };
    for (const auto& it : parts_of(
             graph_, hop, use_.chunks, [this](Index c) { return count_gradient_bytes(graph_, c); }, separate)) {
      if (it.bytes == 0) continue;
      const Move move{{ObjectKind::gradient, it.chunks.first, it.chunks.count},
                      {from, it.at},
                      arrives ? Place{to, it.at} : Place{},
                      it.bytes};
      const auto task = arrives ? take_from_pass(graph_, move, use_.made)
                                : add_hop(graph_, Phase::backward, move, graph_.out.buffers[from].last);
      if (is_asked(it.chunks.first)) {
        graph_.out.tasks[task].when.only = OnlyIf::asked;
        graph_.out.tasks[task].when.share = graph_.chunk(it.chunks.first).asked;
      }
      for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
        if (!arrives) {
          write_gradient(graph_, c, task);
          continue;
        }
        graph_.brings(task, event(c, ChunkEvent::gradient_complete));
        if (ends) graph_.brings(task, event(c, ChunkEvent::gradient_ready), true);
      }
    }
    return arrives ? to : from;
  }

  /// It leaves for its update where a pass has asked for the weights.
  [[nodiscard]] bool is_asked(Index c) const {
    const bool to_memory = hops_.size() == 1 && traits(home_.kind).in_memory && may_be_left(graph_, c);
    return to_memory || can_wait(graph_, c);
  }

  void settle(Index at) {
    Place place{at};
    for (auto c = use_.chunks.first; c < use_.chunks.end(); ++c) {
      if (!graph_.is_mine(c)) continue;
      graph_.gradients[c] = place;
      if (traits(made_).on_host) graph_.brings(graph_.maker_of(use_.made), event(c, ChunkEvent::gradient_complete));
      if (home_.in_memory()) {
        graph_.out.groups[c].grad = place;
        graph_.lets_go(event(c, ChunkEvent::gradient_used), at);
      }
      place.offset += count_gradient_bytes(graph_, c);
    }
  }

  StepGraph& graph_;
  const StepOrder& order_;
  const GradientUse& use_;
  const Residence& home_;
  const TierKind made_;  ///< where they are complete
  const std::vector<Hop> hops_;
  Bytes bytes_ = 0;
  Index last_ = kNone;
};

}  // namespace

const Residence& home_of(const StepGraph& graph, const GradientUse& use) {
  auto c = use.chunks.first;
  while (c < use.chunks.end() && !graph.is_mine(c)) ++c;
  return graph.placement[c < use.chunks.end() ? c : use.chunks.first].gradient;
}

Bytes count_gradient_bytes(const StepGraph& graph, Index c) {
  return graph.is_mine(c) ? graph.grad_bytes(c) : 0;
}

void write_gradient(StepGraph& graph, Index c, Index task) {
  graph.need(task, graph.find_event(c, ChunkEvent::gradient_complete));
  graph.need(task, graph.find_event(c, ChunkEvent::gradient_refitted));
  graph.write_grad[c] = task;
}

void add_gradients(StepGraph& graph) {
  for (const auto& use : gradients_of(graph.order, graph.layout)) {
    add_scatter(graph, use.made, use.chunks);
    GradientRoute route(graph, use);
    route.add_last_place();
    add_gradient_sums(graph, use);
    route.run();
    log_gradients(graph, use);
    read_gradients(graph, use);
    add_early_updates(graph, use);
  }
}

}  // namespace spillway::plan::step
