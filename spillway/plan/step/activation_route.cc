#include "spillway/plan/step/activation_route.h"

#include <algorithm>

#include "spillway/plan/step/hops.h"

namespace spillway::plan::step {
namespace {

/// One activation, hop by hop from the pass that makes it to its home, and on to the pass that it comes back for.
class ActivationRoute {
 public:
  ActivationRoute(StepGraph& graph, const ActivationUse& use, const Residence& home, Bytes bytes, BufferClass kind)
      : graph_(graph),
        order_(graph.order),
        use_(use),
        site_(site_of(use.made)),
        there_(site_of(use.read != kNone ? use.read : use.needed)),
        home_(home_of(home)),
        bytes_(bytes),
        kind_(kind) {}

  void run() {
    const bool crosses = site_ != there_, stays = home_.kind == there_;
    const auto last = (stays && crosses) || use_.needed == kNone ? use_.read : use_.needed;
    const auto hops = hops_between(site_, stays ? site_ : home_.kind);
    const auto made = make(hops, last);
    const auto aside = leave(hops, made);
    auto read = made;
    if (crosses) {
      read =
          arrive(hops_between(site_, there_), made, use_.read, stays && use_.needed != kNone ? use_.needed : use_.read);
    } else if (hops.empty()) {
      graph_.lets_go(task(last), made.buffer);
    } else if (use_.read != kNone) {
      graph_.lets_go(task(use_.read), made.buffer);
    }
    show(use_.read, use_.as_read, read.buffer);
    if (use_.needed == kNone) return;
    const auto back = stays ? read : arrive(hops_between(home_.kind, there_), aside, use_.needed, use_.needed);
    show(use_.needed, use_.as_read, back.buffer);
  }

 private:
  /// A buffer that has it, and the task with which it is complete there. On a path: no buffer.
  struct Copy {
    Index buffer = kNone, by = kNone;
  };

  [[nodiscard]] Index task(Index pass) const { return graph_.task_of(pass); }
  [[nodiscard]] TierKind site_of(Index pass) const {
    return graph_.computes_on_host(pass) ? TierKind::host : TierKind::device;
  }
  [[nodiscard]] TierId home_of(const Residence& home) const {
    if (use_.needed == kNone) return {there_};
    return home.has_device_copy() ? TierId{TierKind::device} : static_cast<TierId>(home);
  }
  /// Rows that passes elsewhere make their input of are packed.
  [[nodiscard]] Bytes bytes() const {
    return site_ == there_ ? bytes_ : round_up(graph_.description.packed_rows_bytes(), 4096);
  }
  void show(Index pass, Operand as, Index buffer) {
    if (pass != kNone) graph_.out.passes[pass][as] = buffer;
  }

  Copy make(const std::vector<Hop>& hops, Index last) {
    auto until = hops.empty() ? order_.position(last) : leaves_by(hops.front());
    if (!hops.empty() && use_.read != kNone) until = std::max(until, order_.position(use_.read));
    const auto buffer = graph_.add_buffer(kind_, bytes(), order_.position(use_.made), until, site_);
    graph_.fills(task(use_.made), buffer);
    show(use_.made, use_.as_made, buffer);
    if (last == use_.needed) settle(buffer, hops.empty());
    // All passes of the embedding make the first; else it is complete with the pass that reads it.
    const bool first = use_.what.index == 0 && use_.read != kNone;
    return {buffer, task(site_ != there_ ? order_.embedding.back() : first ? use_.read : use_.made)};
  }

  /// A buffer in host memory at the end of its way is home.
  void settle(Index buffer, bool ends) {
    if (ends && graph_.out.buffers[buffer].on_host()) graph_.out.buffers[buffer].node = home_.node;
  }

  /// Position up to which what leaves by a hop lies where it was.
  [[nodiscard]] std::uint32_t leaves_by(const Hop& hop) const {
    if (traits(hop.to).in_memory) return around_pass(graph_, hop, use_.made);
    if (use_.read != kNone) return order_.after_read(use_.read);
    const auto left = around_pass(graph_, hop, use_.made);
    return graph_.placement.device ? std::max(left, order_.device_after(use_.made)) : left;
  }

  Copy leave(const std::vector<Hop>& hops, Copy at) {
    for (std::size_t i = 0; i < hops.size(); ++i) {
      Copy next;
      if (traits(hops[i].to).in_memory) {
        const bool ends = i + 1 == hops.size();
        const auto until = ends ? order_.position(use_.needed) : leaves_by(hops[i + 1]);
        next.buffer = graph_.add_buffer(kind_, bytes(), order_.position(use_.made), until, hops[i].to);
        settle(next.buffer, ends);
      } else {
        graph_.out.activations.push_back({use_.what, bytes()});
      }
      const Move move{use_.what, {at.buffer}, {next.buffer}, bytes()};
      next.by = add_hop(graph_, Phase::backward, move, graph_.out.buffers[at.buffer].last);
      graph_.need(next.by, at.by);
      at = next;
    }
    return at;
  }

  /// For `user`, and passes up to `last`.
  Copy arrive(const std::vector<Hop>& hops, Copy at, Index user, Index last) {
    for (const auto& hop : hops) {
      const bool ends = hop.to == there_, unpacks = ends && site_ != there_;
      const auto first = around_pass(graph_, hop, user), until = order_.position(ends && !unpacks ? last : user);
      const Copy next{graph_.add_buffer(kind_, bytes(), first, until, hop.to)};
      if (ends) graph_.lets_go(task(unpacks ? user : last), next.buffer);
      const auto by = bring_to_pass(graph_, {use_.what, {at.buffer}, {next.buffer}, bytes()}, user);
      graph_.need(by, at.by);
      if (at.buffer == kNone) graph_.need(at.by, by, true);
      at = unpacks ? unpack(next.buffer, by, user, last) : Copy{next.buffer, by};
    }
    return at;
  }

  /// `user` makes its input of packed rows when it begins. It is there until the pass `last`.
  Copy unpack(Index packed, Index by, Index user, Index last) {
    graph_.out.tasks[by].by_rows = true;
    show(user, Operand::packed_input, packed);
    const auto there = graph_.add_buffer(kind_, bytes_, order_.position(user), order_.position(last), there_);
    graph_.fills(task(user), there);
    graph_.lets_go(task(last), there);
    return {there, by};
  }

  StepGraph& graph_;
  const StepOrder& order_;
  const ActivationUse& use_;
  const TierKind site_, there_;  ///< where it is made, and where it is read
  const TierId home_;            ///< where it waits; where it is read: it stays there
  const Bytes bytes_;
  const BufferClass kind_;
};

}  // namespace

void follow_activation(StepGraph& graph, const ActivationUse& use, const Residence& home, Bytes bytes,
                       BufferClass kind) {
  ActivationRoute(graph, use, home, bytes, kind).run();
}

}  // namespace spillway::plan::step
