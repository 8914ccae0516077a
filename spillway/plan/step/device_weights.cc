#include <algorithm>
#include <map>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

class DeviceWeights {
 public:
  explicit DeviceWeights(StepGraph& graph) : graph_(graph), order_(graph.order) {}

  void run() {
    for (Index p = 0; p < graph_.out.passes.size(); ++p) {
      if (!graph_.computes_on_host(p) && graph_.host_weights[p].buffer != kNone) add(p);
    }
    for (const auto& [chunk, copy] : kept_) replace_between(copy);
  }

 private:
  /// A copy of weights that stays: tasks that bring it, and passes that read it.
  struct Kept {
    Index buffer = kNone;
    std::vector<Index> uploads, readers;
  };

  [[nodiscard]] Pass& pass(Index p) { return graph_.out.passes[p]; }
  [[nodiscard]] Range chunks_of(Index p) { return plan::chunks_of(graph_.layout, pass(p)); }

  void add(Index p) {
    const auto chunks = chunks_of(p);
    const auto& placed = graph_.placement[chunks.first];
    if (placed.device_resident() && graph_.stays(chunks.first)) return read_in_place(p, chunks);
    if (placed.weight.has_device_copy()) return keep(p, chunks);
    if (p > 0 && same_slice(p - 1, p)) {  // the turn from the first pass over a head
      auto& window = graph_.out.buffers[pass(p - 1)[Operand::weights]];
      window.last = order_.position(p);
      graph_.lets_go(graph_.task_of(p), pass(p - 1)[Operand::weights]);
      pass(p)[Operand::weights] = pass(p - 1)[Operand::weights];
      return;
    }
    add_window(p, chunks);
  }

  /// An update changes what passes of the step before have read. The last chunk is there on each of several processes:
  /// it is frozen.
  void read_in_place(Index p, Range chunks) {
    pass(p)[Operand::weights] = graph_.out.groups[chunks.end() - 1].weight.buffer;
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      graph_.need(graph_.out.update_task[c], graph_.task_of(p), true);
    }
    if (graph_.gathers[p] != kNone) bring_others(p, chunks);
  }

  /// Chunks that other processes have updated come from the window that a gather has filled.
  void bring_others(Index p, Range chunks) {
    auto& kept = kept_[chunks.first];
    kept.readers.push_back(p);
    if (kept.buffer != kNone) return;
    kept.buffer = pass(p)[Operand::weights];
    const auto ends = [this](Index c) { return graph_.is_mine(c) != graph_.is_mine(c - 1); };
    for (const auto& it : coalesce(chunks, graph_.lookahead.coalesce_to, size_of(), ends)) {
      if (!graph_.is_mine(it.chunks.first)) kept.uploads.push_back(upload(it, kept.buffer, p));
    }
    graph_.lets_go(graph_.gathers[p], graph_.host_weights[p].buffer);
  }

  void keep(Index p, Range chunks) {
    auto& kept = kept_[chunks.first];
    kept.readers.push_back(p);
    if (kept.buffer == kNone) {
      kept.buffer = graph_.add_whole(BufferClass::weight, host(p).bytes, TierKind::device);
      for (const auto& it : copies(chunks, true)) kept.uploads.push_back(upload(it, kept.buffer, p));
    }
    pass(p)[Operand::weights] = kept.buffer;
  }

  /// Copies that stay are replaced, where they have changed, when the passes of the step before have read them.
  void replace_between(const Kept& kept) {
    for (const auto upload : kept.uploads) {
      for (const auto reader : kept.readers) graph_.need(upload, graph_.task_of(reader), true);
    }
  }

  void add_window(Index p, Range chunks) {
    const auto groups = copies(chunks, graph_.placement[chunks.first].device_updated());
    auto first = order_.device_before(p), last = order_.position(p);
    for (const auto& it : groups) {
      if (!brings_master(it.chunks.first, p)) continue;
      first = std::min(first, order_.update(it.chunks.first));
      last = std::max(last, order_.device_after_update(it.chunks.end() - 1));
    }
    const auto window = graph_.add_buffer(BufferClass::window, host(p).bytes, first, last, TierKind::device);
    graph_.lets_go(graph_.task_of(p), window);
    pass(p)[Operand::weights] = window;
    for (const auto& it : groups) upload(it, window, p);
  }

  /// True if any process updates it.
  [[nodiscard]] bool is_trained(Index c) const { return state::is_trainable(graph_.chunk(c).training); }

  [[nodiscard]] ChunkBytes size_of() const {
    return [this](Index c) { return graph_.weight_bytes(c); };
  }

  /// `apart`: what is trainable and what is not is sent at different times.
  [[nodiscard]] std::vector<Coalesced> copies(Range chunks, bool apart) const {
    const auto ends = [this](Index c) { return is_trained(c) != is_trained(c - 1); };
    return coalesce(chunks, graph_.lookahead.coalesce_to, size_of(), apart ? Separate(ends) : Separate{});
  }

  [[nodiscard]] const Buffer& host(Index p) const { return graph_.out.buffers[graph_.host_weights[p].buffer]; }

  /// The first pass that reads such chunks does so after their update, which takes the weights from the same copy. Of
  /// several processes each brings its own apart (add_device_updates), as a gather comes between update and pass.
  [[nodiscard]] bool brings_master(Index c, Index p) {
    const bool alone = graph_.gathers[p] == kNone;
    return alone && graph_.placement[c].device_updated() && traits(pass(p).kind).phase != Phase::backward;
  }

  Index upload(const Coalesced& it, Index there, Index p) {
    const auto& weights = graph_.host_weights[p];
    const auto first = it.chunks.first;
    const auto task = add_upload(graph_, {ObjectKind::weight, first, it.chunks.count}, {weights.buffer, it.at},
                                 {there, it.at}, it.bytes, p);
    const auto gather = graph_.gathers[p];  // which comes after all that this process updates and reads itself
    graph_.need(task, gather);
    graph_.out.tasks[task].when.from_others = gather != kNone && is_trained(first);
    const bool master = brings_master(first, p);
    if (master) {
      graph_.out.tasks[task].when.phase = Phase::forward;
      graph_.out.tasks[task].deadline = order_.update(first);
      graph_.master_uploads.push_back(task);
    }
    for (auto c = first; gather == kNone && c < it.chunks.end(); ++c) {
      if (!master) graph_.need(task, graph_.find_event(c, ChunkEvent::weight_updated));
      if (!weights.reads.empty()) graph_.need(task, weights.reads[c - chunks_of(p).first]);
    }
    return task;
  }

  [[nodiscard]] bool same_slice(Index a, Index b) {
    const auto& one = pass(a);
    const auto& other = pass(b);
    return !one.on_host && !traits(other.kind).of_layer && one.block == other.block && one.slice == other.slice;
  }

  StepGraph& graph_;
  const StepOrder& order_;
  std::map<Index, Kept> kept_;  ///< by first chunk
};

}  // namespace

void add_device_weights(StepGraph& graph) {
  DeviceWeights(graph).run();
}

}  // namespace spillway::plan::step
