#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

class Boundaries {
 public:
  explicit Boundaries(StepGraph& graph) : graph_(graph), order_(graph.order) {}

  void run() {
    const auto layers = static_cast<Index>(order_.layers.size());
    for (Index i = 0; i < layers; ++i) add(i);
    const auto last = add_last();
    graph_.boundary_out[layers] = graph_.boundary_in[layers] = last;
    for (Index i = 0; i < layers; ++i) join(i);
    for (const auto pass : order_.embedding) graph_.out.passes[pass][Operand::gathered_rows] = graph_.boundary_out[0];
    if (order_.head == kNone && order_.any_backward())
      graph_.out.passes[order_.backward.back()][Operand::output] = last;
  }

 private:
  [[nodiscard]] Index task_of(Index pass) const { return graph_.task_of(pass); }
  /// The first is filled by the embedding's passes, or by the caller in the first forward pass.
  [[nodiscard]] Index maker(Index i) const {
    return i > 0 ? order_.forward[i - 1] : order_.embedding.empty() ? order_.forward[0] : order_.embedding.front();
  }
  /// Passes find it in the memory that they compute in, and nothing is copied.
  [[nodiscard]] bool in_place(Index i) const { return !graph_.boundary_is_copied(i); }

  /// The first is gathered as packed rows where they cross to a device.
  [[nodiscard]] Bytes bytes(Index i) const {
    const bool packed = graph_.is_gathered(i) && !in_place(i);
    return packed ? round_up(graph_.description.packed_rows_bytes(), 4096) : graph_.boundary_buffer_bytes();
  }

  void add(Index i) {
    const auto back = order_.backward[i];
    const bool kept = graph_.placement.boundaries[i].in_memory() || graph_.placement.boundaries[i].has_device_copy();
    if (back == kNone || kept) {
      keep(i, back);
    } else {
      spill(i, back);
    }
    if (!graph_.placement.device) {
      graph_.brings(task_of(i == 0 ? order_.forward[i] : maker(i)), graph_.complete(i));
    }
  }

  void keep(Index i, Index back) {
    const bool until_forward = back == kNone || (graph_.placement.boundaries[i].has_device_copy() && !in_place(i));
    const auto last = until_forward ? order_.forward[i] : back;
    const auto tier = in_place(i) ? graph_.compute_tier() : TierKind::host;
    const auto buffer =
        graph_.add_buffer(BufferClass::activation, bytes(i), order_.position(maker(i)), order_.position(last), tier);
    graph_.boundary_out[i] = graph_.boundary_in[i] = buffer;
    if (!until_forward && traits(tier).on_host) {
      graph_.out.buffers[buffer].node = graph_.placement.boundaries[i].node;
    }
    if (in_place(i) || graph_.is_gathered(i)) graph_.fills(task_of(maker(i)), buffer);
    if (in_place(i)) graph_.lets_go(task_of(last), buffer);
  }

  /// To a path after forward, and back before backward.
  void spill(Index i, Index back) {
    const auto used = order_.position(order_.forward[i]);
    const auto left = std::min(used + 1 + graph_.lookahead.backward, order_.backward_start() - 1);
    const auto trip = add_round_trip(graph_, BufferClass::activation, {{ObjectKind::boundary, i}, bytes(i)},
                                     {maker(i), back, std::max(used, left)});
    graph_.boundary_out[i] = trip.away;
    graph_.boundary_in[i] = trip.home;
    graph_.boundary_reads[i] = trip.read;
    graph_.need(trip.write, graph_.complete(i));
    if (in_place(i) || graph_.is_gathered(i)) graph_.fills(task_of(maker(i)), trip.away);
    if (!in_place(i)) return;
    graph_.lets_go(task_of(order_.forward[i]), trip.away);
    graph_.lets_go(task_of(back), trip.home);
  }

  /// Output of the last layer for the head, or for the caller.
  Index add_last() {
    const auto maker = order_.forward.back();
    const auto end = order_.head != kNone    ? order_.head_gradient.back()
                     : order_.any_backward() ? order_.backward.back()
                                             : maker;
    const auto out = graph_.add_buffer(BufferClass::activation, bytes(static_cast<Index>(order_.layers.size())),
                                       order_.position(maker), order_.position(end), graph_.compute_tier());
    graph_.fills(task_of(maker), out);
    graph_.lets_go(task_of(end), out);
    return out;
  }

  void join(Index i) {
    auto& passes = graph_.out.passes;
    const auto back = order_.backward[i];
    if (in_place(i)) {
      passes[order_.forward[i]][Operand::input] = graph_.boundary_out[i];
      if (back != kNone) passes[back][Operand::input] = graph_.boundary_in[i];
    }
    const bool last = i + 1 == order_.layers.size();
    if (last || in_place(i + 1)) passes[order_.forward[i]][Operand::output] = graph_.boundary_out[i + 1];
  }

  StepGraph& graph_;
  const StepOrder& order_;
};

}  // namespace

void add_boundaries(StepGraph& graph) {
  if (graph.description.hidden != 0) Boundaries(graph).run();
}

}  // namespace spillway::plan::step
