#include <algorithm>
#include <utility>

#include "spillway/plan/conversion.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {
namespace {

/// One activation, from the pass that makes it to where it waits and back.
class ActivationRoute {
 public:
  ActivationRoute(StepGraph& graph, const ActivationUse& use, const Residence& home, Bytes bytes, BufferClass kind)
      : graph_(graph), order_(graph.order), use_(use), home_(home), bytes_(bytes), kind_(kind) {}

  /// Passes find it in the memory that they compute in, and only a path takes it from there.
  void stay() {
    const auto aside = lie_aside(graph_.compute_tier(), bytes_, use_.needed != kNone ? use_.needed : use_.read);
    // The first is complete with the pass that reads it.
    graph_.need(aside.write, task(use_.what.index == 0 && use_.read != kNone ? use_.read : use_.made));
    graph_.fills(task(use_.made), aside.away);
    if (aside.write == kNone) {
      graph_.lets_go(task(use_.needed != kNone ? use_.needed : use_.read), aside.home);
    } else {
      if (use_.read != kNone) graph_.lets_go(task(use_.read), aside.away);
      graph_.lets_go(task(use_.needed), aside.home);
    }
    show(use_.made, use_.as_made, aside.away);
    show(use_.read, use_.as_read, aside.away);
    show(use_.needed, use_.as_read, aside.home);
  }

  /// A device makes it and reads it, and it waits on the host's side.
  void cross() {
    const auto aside = lie_aside(TierKind::host, bytes_, use_.needed);
    const auto left = around_pass(graph_, Lane::from_device, use_.made);
    const auto last = use_.read != kNone ? std::max(order_.position(use_.read), left) : left;
    const auto there = graph_.add_buffer(kind_, bytes_, order_.position(use_.made), last, TierKind::device);
    graph_.fills(task(use_.made), there);
    if (use_.read != kNone) graph_.lets_go(task(use_.read), there);
    show(use_.made, use_.as_made, there);
    show(use_.read, use_.as_read, there);
    const auto down = take_from_pass(graph_, Lane::from_device, {use_.what, {there}, {aside.away}, bytes_}, use_.made);
    graph_.need(aside.write, down);
    const auto comes = graph_.add_buffer(kind_, bytes_, around_pass(graph_, Lane::to_device, use_.needed),
                                         order_.position(use_.needed), TierKind::device);
    arrive(comes, aside.home, aside.read != kNone ? aside.read : down, use_.needed);
    graph_.lets_go(task(use_.needed), comes);
    show(use_.needed, use_.as_read, comes);
  }

  /// The embedding's passes make it on the host, as packed rows, and passes on a device make their input of these.
  void cross_packed() {
    const bool stays = home_.has_device_copy() || use_.needed == kNone;
    const auto packed = round_up(graph_.description.packed_rows_bytes(), 4096);
    const auto aside = lie_aside(TierKind::host, packed, stays ? use_.read : use_.needed);
    const auto whole = task(order_.embedding.back());
    graph_.fills(task(use_.made), aside.away);
    graph_.need(aside.write, whole);
    show(use_.made, use_.as_made, aside.away);
    const auto last = stays && use_.needed != kNone ? use_.needed : use_.read;
    const auto there = unpack(aside.away, whole, use_.read, last);
    if (use_.needed == kNone) return;
    const auto back =
        stays ? there : unpack(aside.home, aside.read != kNone ? aside.read : whole, use_.needed, use_.needed);
    show(use_.needed, use_.as_read, back);
  }

 private:
  /// The buffers that it leaves for a path and comes back to, and the tasks; in memory one buffer.
  struct Aside {
    Index away, home;
    Index write = kNone, read = kNone;
  };

  [[nodiscard]] Index task(Index pass) const { return graph_.task_of(pass); }
  void show(Index pass, Operand as, Index buffer) {
    if (pass != kNone) graph_.out.passes[pass][as] = buffer;
  }

  Aside lie_aside(TierKind tier, Bytes bytes, Index last) {
    if (use_.needed != kNone && !home_.in_memory() && !home_.has_device_copy()) return go_to_path(bytes);
    const auto buffer = graph_.add_buffer(kind_, bytes, order_.position(use_.made), order_.position(last), tier);
    if (last == use_.needed && traits(tier).on_host) graph_.out.buffers[buffer].node = home_.node;
    return {buffer, buffer};
  }

  Aside go_to_path(Bytes bytes) {
    const auto made = order_.position(use_.made), needed = order_.position(use_.needed);
    auto left = use_.read != kNone ? order_.after_read(use_.read) : around_pass(graph_, Lane::write, use_.made);
    if (use_.read == kNone && graph_.placement.device)
      left = std::max(left, around_pass(graph_, Lane::from_device, use_.made));
    Aside out{};
    out.away = graph_.add_buffer(kind_, bytes, made, left);
    out.write = add_hop(graph_, Lane::write, Phase::backward, {use_.what, {out.away}, {}, bytes}, left);
    out.home = graph_.add_buffer(kind_, bytes, around_pass(graph_, Lane::read, use_.needed), needed);
    out.read = bring_to_pass(graph_, Lane::read, {use_.what, {}, {out.home}, bytes}, use_.needed);
    graph_.need(out.read, out.write);
    graph_.need(out.write, out.read, true);
    graph_.out.activations.push_back({use_.what, bytes});
    return out;
  }

  /// To a window of `user`, as soon as `by` has ended.
  Index arrive(Index window, Index from, Index by, Index user) {
    const Move move{use_.what, {from}, {window}, graph_.out.buffers[from].bytes};
    const auto up = bring_to_pass(graph_, Lane::to_device, move, user);
    graph_.need(up, by);
    return up;
  }

  /// `user` makes its input of packed rows when it begins. It is there until the pass `last`.
  Index unpack(Index from, Index by, Index user, Index last) {
    const auto at = order_.position(user);
    const auto packed = graph_.add_buffer(kind_, graph_.out.buffers[from].bytes,
                                          around_pass(graph_, Lane::to_device, user), at, TierKind::device);
    graph_.lets_go(task(user), packed);
    show(user, Operand::packed_input, packed);
    const auto there = graph_.add_buffer(kind_, bytes_, at, order_.position(last), TierKind::device);
    graph_.fills(task(user), there);
    graph_.lets_go(task(last), there);
    show(user, use_.as_read, there);
    graph_.out.tasks[arrive(packed, from, by, user)].by_rows = true;
    return there;
  }

  StepGraph& graph_;
  const StepOrder& order_;
  const ActivationUse& use_;
  const Residence home_;
  const Bytes bytes_;
  const BufferClass kind_;
};

void add_boundary(StepGraph& graph, const ActivationUse& use) {
  const auto& home = graph.placement.boundaries[use.what.index];
  ActivationRoute route(graph, use, home, graph.boundary_buffer_bytes(), BufferClass::activation);
  const bool on_host = graph.computes_on_host(use.made);
  if (!graph.placement.device) {
    route.stay();
  } else if (on_host) {
    route.cross_packed();
  } else if (home.has_device_copy() || use.needed == kNone) {
    route.stay();
  } else {
    route.cross();
  }
  for (const auto pass : graph.order.embedding) {
    if (use.as_made == Operand::gathered_rows) {
      graph.out.passes[pass][use.as_made] = graph.out.passes[use.made][use.as_made];
    }
  }
}

/// For the head, or for the caller.
void add_last_boundary(StepGraph& graph) {
  const auto use = last_boundary_of(graph.order);
  const Residence home{{graph.compute_tier()}};
  ActivationRoute(graph, use, home, graph.boundary_buffer_bytes(), BufferClass::activation).stay();
  const auto buffer = graph.out.passes[use.made][use.as_made];
  for (const auto* passes : {&graph.order.head_loss, &graph.order.head_gradient}) {
    for (const auto pass : *passes) graph.out.passes[pass][use.as_read] = buffer;
  }
}

/// Adds the one place of an operand, in the memory that passes compute in. Returns the buffer.
Index add_shared(StepGraph& graph, const SharedUse& use, Bytes bytes) {
  const auto first = use.passes.front(), last = use.passes.back();
  const auto buffer = graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(first),
                                       graph.order.position(last), graph.compute_tier());
  graph.fills(graph.task_of(first), buffer);
  for (const auto pass : use.passes) graph.out.passes[pass][use.as] = buffer;
  return buffer;
}

/// The embedding's backward pass, which is the host's, reads a copy there.
void add_hidden_gradient(StepGraph& graph) {
  const auto use = hidden_gradient_of(graph.order);
  if (use.passes.empty()) return;
  const auto bytes = graph.boundary_buffer_bytes();
  const auto there = add_shared(graph, use, bytes);
  const auto last = use.passes.back();
  if (!graph.placement.device || !graph.computes_on_host(last)) return graph.lets_go(graph.task_of(last), there);
  const auto maker = last - 1;
  const auto here =
      graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(maker), graph.order.position(last));
  graph.lets_go(graph.task_of(last), here);
  const Move move{{ObjectKind::hidden_gradient}, {there}, {here}, bytes};
  graph.need(graph.task_of(last), take_from_pass(graph, Lane::from_device, move, maker));
  graph.out.passes[last][use.as] = here;
}

void add_head_sums(StepGraph& graph) {
  const auto use = head_sums_of(graph.order);
  const auto elements = round_up(graph.description.tokens * graph.description.hidden, 2048);
  if (use.passes.empty() || elements == 0) return;
  graph.lets_go(graph.task_of(use.passes.back()), add_shared(graph, use, elements * sizeof(float)));
}

void add_converted(StepGraph& graph) {
  Bytes most = 0;
  SharedUse use{Operand::converted, {}};
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    const auto bytes = converted_bytes(graph.description, graph.layout, graph.out.passes[p]);
    if (bytes == 0) continue;
    most = std::max(most, bytes);
    use.passes.push_back(p);
  }
  if (use.passes.empty()) return;
  graph.lets_go(graph.task_of(use.passes.back()), add_shared(graph, use, round_up(most, 4096)));
}

}  // namespace

void add_activations(StepGraph& graph) {
  add_head_sums(graph);
  add_converted(graph);
  const auto& order = graph.order;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto how = graph.saved.of(order.layers[i]);
    graph.out.passes[order.forward[i]].saved = graph.out.passes[order.backward[i]].saved = how;
  }
  for (const auto& use : saved_of(order, graph.saved)) {
    ActivationRoute route(graph, use, Residence{graph.saved.home}, graph.saved.spilled, BufferClass::spilled);
    graph.placement.device ? route.cross() : route.stay();
  }
  if (graph.description.hidden == 0) return;
  for (const auto& use : boundaries_of(order)) add_boundary(graph, use);
  add_last_boundary(graph);
  add_hidden_gradient(graph);
}

}  // namespace spillway::plan::step
