#include <algorithm>
#include <iterator>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

class DeviceUpdates {
 public:
  explicit DeviceUpdates(StepGraph& graph) : graph_(graph), order_(graph.order), out_(graph.out) {}

  void run() {
    out_.device_groups.assign(graph_.chunks(), {});
    for (const auto upload : graph_.master_uploads) return_weights(upload);
    for (Index c = 0; c < graph_.chunks(); ++c) {
      const auto& placed = graph_.placement[c];
      if (!graph_.is_trainable(c)) continue;
      if (placed.device_resident() && placed.gradient_comes()) out_.device_groups[c] = out_.groups[c];
      if (!placed.device_updated()) continue;
      bring(c, kStatePart, ChunkEvent::state_read);
      if (graph_.description.is_shared()) bring(c, kWeightPart, ChunkEvent::weight_read);
      if (placed.gradient_there()) out_.device_groups[c].grad = out_.groups[c].grad;
    }
    for (const auto& it : gradients_that_come()) bring_gradients(it);
    for (Index p = 0; p < out_.passes.size(); ++p) wait_for_readers(p);
  }

 private:
  [[nodiscard]] Event find_event(Index c, ChunkEvent event) const { return graph_.find_event(c, event); }
  [[nodiscard]] Index update(Index c) const { return out_.update_task[c]; }

  Index copy(Lane lane, Object what, Place from, Place to, Bytes bytes, std::uint32_t deadline) {
    return add_transfer(graph_, lane, Phase::update, {what, from, to, bytes}, deadline);
  }

  /// A copy back: it follows the update, and a snapshot is whole with both its parts, so that neither of them may be
  /// taken anew before the one that was taken last is written.
  void follows_update(Index down, Index c, ChunkEvent brings) {
    graph_.need(down, update(c));
    graph_.need(down, find_event(c, ChunkEvent::snapshot_taken), true);
    graph_.brings(down, find_event(c, brings));
  }

  /// The chunks that a copy has brought go back after their updates.
  void return_weights(Index up) {
    const auto brought = out_.tasks[up];
    const auto last = brought.what.end() - 1;
    const auto until = order_.device_after_update(last);
    const auto down = copy(Lane::from_device, brought.what, brought.to, brought.from, brought.bytes, until);
    if (!out_.buffers[brought.to.buffer].whole) graph_.lets_go(down, brought.to.buffer);
    graph_.need(up, down, true);
    for (auto c = brought.what.index; c <= last; ++c) {
      graph_.need(update(c), up);
      graph_.need(update(c), down, true);
      follows_update(down, c, ChunkEvent::weight_updated);
      out_.device_groups[c].weight = {brought.to.buffer, out_.groups[c].weight.offset};
    }
  }

  /// To staging of its own for the update, and back.
  void bring(Index c, const SnapshotPart& part, ChunkEvent read) {
    const Object what{part.kind, c};
    const auto here = out_.groups[c].*part.place;
    const auto bytes = traits(part.kind).bytes(graph_.rule, graph_.chunk(c));
    const auto until = order_.device_after_update(c);
    const Place there{
        graph_.add_buffer(BufferClass::staging, bytes, order_.device_before_update(c), until, TierKind::device)};
    const auto up = copy(Lane::to_device, what, here, there, bytes, order_.update(c));
    const auto down = copy(Lane::from_device, what, there, here, bytes, until);
    graph_.fills(up, there.buffer);
    graph_.lets_go(down, there.buffer);
    graph_.need(up, down, true);
    graph_.need(up, find_event(c, read));
    graph_.need(update(c), up);
    follows_update(down, c, part.updated);
    out_.device_groups[c].*part.place = there;
  }

  /// Gradients that lie behind one another on the host are one copy.
  [[nodiscard]] std::vector<Coalesced> gradients_that_come() const {
    const auto comes = [&](Index c) { return graph_.placement[c].gradient_comes() && graph_.is_trainable(c); };
    const auto host = [&](Index c) { return out_.groups[c].grad.buffer; };
    std::vector<Coalesced> out;
    for (Index c = 0; c < graph_.chunks();) {
      Range range{c, 1};
      if (comes(c)) {
        while (range.end() < graph_.chunks() && comes(range.end()) && host(range.end()) == host(c)) ++range.count;
        std::ranges::move(coalesce(range, graph_.lookahead.coalesce_to, [&](Index i) { return graph_.grad_bytes(i); }),
                          std::back_inserter(out));
      }
      c = range.end();
    }
    return out;
  }

  void bring_gradients(const Coalesced& it) {
    const auto first = it.chunks.first, last = it.chunks.end() - 1;
    const auto here = out_.groups[first].grad;
    const auto there = graph_.add_buffer(BufferClass::grad, it.bytes, order_.device_before_update(first),
                                         order_.update(last), TierKind::device);
    const auto up = copy(Lane::to_device, {ObjectKind::gradient, first, it.chunks.count}, here, {there}, it.bytes,
                         order_.update(first));
    graph_.fills(up, there);
    for (auto c = first; c <= last; ++c) {
      graph_.need(up, find_event(c, ChunkEvent::gradient_ready));
      graph_.need(update(c), up);
      graph_.lets_go(update(c), there);
      graph_.brings(up, find_event(c, ChunkEvent::gradient_used));
      out_.device_groups[c].grad = {there, out_.groups[c].grad.offset - here.offset};
    }
  }

  /// An update changes what passes of the step before have read, and takes what they have made.
  void wait_for_readers(Index p) {
    const auto& pass = out_.passes[p];
    if (graph_.computes_on_host(p)) return;
    const auto chunks = chunks_of(graph_.layout, pass);
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      if (!graph_.placement[c].device_updated() || !graph_.is_mine(c)) continue;
      const bool makes = pass[Operand::gradient] != kNone && graph_.placement[c].gradient_there();
      const bool keeps = out_.buffers[out_.device_groups[c].weight.buffer].whole;
      if (makes || keeps) graph_.need(update(c), pass.task, true);
    }
  }

  StepGraph& graph_;
  const StepOrder& order_;
  Schedule& out_;
};

}  // namespace

void add_device_updates(StepGraph& graph) {
  const auto comes = [](const ChunkPlacement& it) { return it.device_updated() || it.gradient_comes(); };
  if (std::ranges::any_of(graph.placement.chunks, comes)) DeviceUpdates(graph).run();
}

}  // namespace spillway::plan::step
