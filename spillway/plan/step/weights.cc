#include <algorithm>

#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/network.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/snapshots.h"
#include "spillway/plan/step/uses.h"
#include "spillway/plan/step/waiting_updates.h"

namespace spillway::plan::step {
namespace {

/// The weights of an object that passes read: to the host, from other processes, and to where each pass computes.
class WeightRoute {
 public:
  /// `object`: the number of it among those that the passes read.
  WeightRoute(StepGraph& graph, const WeightUse& use, std::size_t object)
      : graph_(graph),
        order_(graph.order),
        out_(graph.out),
        use_(use),
        chunks_(use.objects[object]),
        passes_(use.passes),
        object_(object) {}

  /// A pass finds what the one before it has left: what stays, a copy on the device, or a window that both read.
  [[nodiscard]] bool finds(std::size_t i) const {
    if (i == 0) return false;
    const bool copied = home().has_device_copy() && !graph_.computes_on_host(passes_[i - 1]);
    return graph_.stays(chunks_.first) || copied || follows(i);
  }

  void bring_to_host(std::size_t i) {
    const auto p = passes_[i];
    const bool beside = is_changed(chunks_.first) && traits(out_.passes[p].kind).of_layer;
    if (i == 0 && lives_there() && graph_.description.is_shared() && beside) {
      read_beside();
    } else if (i == 0) {
      read_first();
    } else if (finds(i)) {
      const bool window = !graph_.stays(chunks_.first) && !home().has_device_copy();
      if (window && graph_.computes_on_host(p)) graph_.lets_go(task(i), host(i - 1).buffer);
      graph_.add_weights(p, chunks_, {host(i - 1).buffer, {}});
    } else {
      read_again(i);
    }
    if (graph_.description.is_shared() && !finds(i)) at(p).whole = host(i).buffer;
    for (auto c = chunks_.first; c < chunks_.end(); ++c) wait_for_update(graph_, p, c);
  }

  /// From there, and from the gather of the pass.
  void bring_to_device(std::size_t i) {
    const auto p = passes_[i];
    if (lives_there()) {
      read_in_place(p);
    } else if (home().has_device_copy()) {
      keep_copy(p);
    } else if (follows(i)) {
      const auto window = at(p - 1).here;
      out_.buffers[window].last = order_.position(p);
      graph_.lets_go(graph_.task_of(p), window);
      at(p).here = window;
    } else {
      add_window(p);
    }
  }

  /// Copies that stay are replaced, where they have changed, when the passes of the step before have read them.
  void replace_between() {
    for (const auto upload : uploads_) {
      for (const auto reader : readers_) graph_.need(upload, graph_.task_of(reader), true);
    }
  }

 private:
  [[nodiscard]] const Residence& home() const { return graph_.placement[chunks_.first].weight; }
  [[nodiscard]] bool lives_there() const {
    return graph_.placement[chunks_.first].device_resident() && graph_.stays(chunks_.first);
  }
  [[nodiscard]] HostWeights& host(std::size_t i) { return host_at(passes_[i]); }
  [[nodiscard]] HostWeights& host_at(Index p) { return graph_.host_weights[p][object_]; }
  [[nodiscard]] PassWeights& at(Index p) { return out_.passes[p].weights[object_]; }
  [[nodiscard]] Index task(std::size_t i) const { return graph_.task_of(passes_[i]); }
  /// True if any process updates it, and if this one does.
  [[nodiscard]] bool is_changed(Index c) const { return c < use_.changed_end; }
  [[nodiscard]] bool is_updated(Index c) const { return out_.update_task[c] != kNone; }
  [[nodiscard]] ChunkBytes size_of() const {
    return [this](Index c) { return graph_.weight_bytes(c); };
  }

  /// The two passes over a slice of a table follow one another.
  [[nodiscard]] bool follows(std::size_t i) const {
    if (i == 0 || i >= passes_.size() || passes_[i] != passes_[i - 1] + 1) return false;
    return !traits(out_.passes[passes_[i]].kind).of_layer && !out_.passes[passes_[i - 1]].on_host;
  }
  /// Passes ask for it. What others send comes in any case, and so does a copy that stays or takes an update there.
  [[nodiscard]] bool is_asked() const {
    const auto& chunk = graph_.chunk(chunks_.first);
    const bool comes = graph_.description.is_sent(chunk) || graph_.placement[chunks_.first].device_updated();
    return chunk.asked < 1 && !comes && !home().has_device_copy() && !lives_there();
  }
  /// It comes to the host when the first pass asks, unless the host reads it for its update before that.
  [[nodiscard]] bool comes_when_asked() const {
    return is_asked() && (!is_updated(chunks_.first) || home().in_memory());
  }
  /// A hop to a pass; of what is asked for it begins when the pass asks in forward, and in backward ahead of a pass,
  /// for what the forward pass has asked for.
  Index bring(const Move& move, Index p) {
    const auto task = bring_to_pass(graph_, move, p, is_asked());
    if (!is_asked()) return task;
    out_.tasks[task].when.only = OnlyIf::asked;
    out_.tasks[task].when.share = graph_.chunk(chunks_.first).asked;
    const auto before = p != passes_.front() ? passes_.front() : p - 1;
    if (p > 0) graph_.need(task, graph_.task_of(before));
    return task;
  }

  // To the host:
  /// Position up to which a weight on its way home lies where it was for its update.
  [[nodiscard]] std::uint32_t leaves_by(Index c) const {
    return around_update(graph_, hop_between(TierKind::host, graph_.placement[c].weight.kind), c);
  }
  /// Position up to which the window of a pass is in use.
  [[nodiscard]] std::uint32_t window_end(std::size_t i) const {
    const bool window = follows(i + 1) && !graph_.stays(chunks_.first) && !home().has_device_copy();
    return order_.position(passes_[window ? i + 1 : i]);
  }

  /// For the updates and the first pass that reads them.
  void read_first() {
    const auto p = passes_.front();
    Bytes bytes = 0, mine = 0;
    auto until = window_end(0);
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      bytes += graph_.weight_bytes(c);
      mine += graph_.is_mine(c) ? graph_.weight_bytes(c) : 0;
      if (is_updated(c) && !graph_.placement[c].weight.in_memory()) {
        until = std::max(until, leaves_by(c));
      }
    }
    HostWeights weights;
    Place own;  // where this process's weights stay, apart from what passes read
    if (graph_.stays(chunks_.first)) {
      whole_ = weights.buffer = graph_.add_whole(BufferClass::weight, bytes, home().kind);
      if (home().on_host()) {
        for (auto c = chunks_.first; c < chunks_.end(); ++c) out_.resident_weight[c] = weights.buffer;
      }
    } else {
      if (home().in_memory() && mine > 0) own = {graph_.add_whole(BufferClass::weight, mine, home().kind)};
      const auto ahead = order_.before_update(chunks_.first, graph_.lookahead.weight_read);
      const auto begin = comes_when_asked() ? order_.position(p) : ahead;
      weights.buffer = graph_.add_buffer(BufferClass::window, bytes, begin, until);
      if (graph_.computes_on_host(p)) graph_.lets_go(graph_.task_of(p), weights.buffer);
    }
    Place place{weights.buffer};
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      bring_chunk(c, place, own, weights);
      place.offset += graph_.weight_bytes(c);
    }
    graph_.add_weights(p, chunks_, std::move(weights));
  }

  void bring_chunk(Index c, Place place, Place& own, HostWeights& weights) {
    if (!graph_.is_mine(c)) return;  // a gather brings it
    if (own.any()) {
      keep(c, own);
      own.offset += graph_.weight_bytes(c);
      if (graph_.is_read(c)) weights.reads.push_back(add_read(c, place, passes_.front()));
    } else if (graph_.placement[c].weight.in_memory()) {
      keep(c, place);
    } else {
      weights.reads.push_back(comes_when_asked() ? add_read(c, place, passes_.front()) : add_round(c, place));
    }
  }

  void keep(Index c, Place there) {
    out_.groups[c].weight = there;
    if (is_updated(c)) add_snapshot(graph_, kWeightSnapshot, c, there);
  }

  /// An object of a layer that lives on the devices of several processes and is frozen in part. Each one has all of it
  /// there. What is trainable, the first chunks, is sent and received through a window on the host.
  void read_beside() {
    const auto p = passes_.front();
    Bytes bytes = 0, window = 0;
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      bytes += graph_.weight_bytes(c);
      if (is_changed(c)) window = bytes;
    }
    Place there{whole_ = graph_.add_whole(BufferClass::weight, bytes, TierKind::device)};
    const auto begin = order_.before_update(chunks_.first, graph_.lookahead.weight_read);
    HostWeights weights{graph_.add_buffer(BufferClass::window, window, begin, order_.position(p)), {}};
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      if (graph_.is_mine(c)) keep(c, there);
      if (is_updated(c)) weights.reads.push_back(add_read(c, {weights.buffer, there.offset}, p));
      there.offset += graph_.weight_bytes(c);
    }
    graph_.add_weights(p, chunks_, std::move(weights));
  }

  /// A window of its own for a pass that needs them once more.
  void read_again(std::size_t i) {
    const auto p = passes_[i];
    Bytes bytes = 0;
    for (auto c = chunks_.first; c < chunks_.end(); ++c) bytes += graph_.weight_bytes(c);
    HostWeights weights{graph_.add_buffer(BufferClass::window, bytes, window_begin(graph_, p), window_end(i)), {}};
    if (graph_.computes_on_host(p)) graph_.lets_go(task(i), weights.buffer);
    Place place{weights.buffer};
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      if (graph_.is_read(c)) weights.reads.push_back(add_read(c, place, p));
      place.offset += graph_.weight_bytes(c);
    }
    graph_.add_weights(p, chunks_, std::move(weights));
  }

  /// From its home, for a pass that does not follow an update there: from a path, or from a device where this process
  /// keeps its own weights, to where a gather sends them from.
  Index add_read(Index c, Place to, Index p) {
    const auto read = bring({{ObjectKind::weight, c}, kept_at(c), to, graph_.weight_bytes(c)}, p);
    if (need_not_come(c, p)) out_.tasks[read].when.only = OnlyIf::changed_weights;
    graph_.need(read, graph_.write_weight[c]);
    if (!is_link(out_.tasks[read].lane)) return read;
    graph_.need(read, out_.update_task[c]);
    graph_.need(out_.update_task[c], read, true);
    return read;
  }
  /// None on a path.
  [[nodiscard]] Place kept_at(Index c) const {
    return graph_.placement[c].weight.in_memory() ? out_.groups[c].weight : Place{};
  }

  /// To `to` for its update and its pass, and to the path after the update. What does not learn is only read.
  Index add_round(Index c, Place to) {
    const auto bytes = graph_.weight_bytes(c);
    const Object what{ObjectKind::weight, c};
    const auto p = passes_.front();
    const auto read = add_hop(graph_, Phase::forward, {what, {}, to, bytes}, order_.update(c));
    if (need_not_come(c, p)) out_.tasks[read].when.only = OnlyIf::changed_weights;
    const bool waits = can_wait(graph_, c);
    if (!waits) graph_.need(graph_.task_of(p), read);
    out_.groups[c].weight = to;
    if (!is_updated(c)) return read;
    const auto write = add_hop(graph_, Phase::update, {what, to, {}, bytes}, leaves_by(c));
    graph_.need(read, write, true);
    graph_.need(write, graph_.find_event(c, ChunkEvent::weight_updated));
    graph_.brings(read, graph_.find_event(c, ChunkEvent::weight_read));
    graph_.write_weight[c] = write;
    if (waits) bring_when_asked(graph_, c, read, write);
    return read;
  }

  /// Weights that a pass reads once, and a device keeps, need not come again. Each of several processes updates only
  /// its own there, apart from the copy.
  [[nodiscard]] bool need_not_come(Index c, Index p) const {
    const bool apart = graph_.description.is_shared() && graph_.placement[c].updated_there();
    return graph_.placement[c].weight.has_device_copy() && !graph_.computes_on_host(p) && !apart;
  }

  // From there to a device:
  [[nodiscard]] static const Hop& hop_up() { return hop_between(TierKind::host, TierKind::device); }

  /// An update changes what passes of the step before have read.
  void read_in_place(Index p) {
    at(p).here = whole_;
    for (auto c = chunks_.first; c < chunks_.end(); ++c) graph_.need(out_.update_task[c], graph_.task_of(p), true);
    if (graph_.gathers[p] != kNone) bring_others(p);
  }

  /// Chunks that other processes have updated come from the window that a gather has filled.
  void bring_others(Index p) {
    readers_.push_back(p);
    if (copy_ != kNone) return;
    copy_ = at(p).here;
    const auto ends = [this](Index c) { return graph_.is_mine(c) != graph_.is_mine(c - 1); };
    for (const auto& it : parts_of(graph_, hop_up(), chunks_, size_of(), ends)) {
      if (!graph_.is_mine(it.chunks.first)) uploads_.push_back(upload(it, copy_, p));
    }
    graph_.lets_go(graph_.gathers[p], host_at(p).buffer);
  }

  void keep_copy(Index p) {
    readers_.push_back(p);
    if (copy_ == kNone) {
      copy_ = graph_.add_whole(BufferClass::weight, host_bytes(p), TierKind::device);
      for (const auto& it : copies(true)) uploads_.push_back(upload(it, copy_, p));
      place_copies();
    }
    at(p).here = copy_;
  }

  void add_window(Index p) {
    const auto groups = copies(graph_.placement[chunks_.first].device_updated());
    const bool ahead = !is_asked() || p != passes_.front();
    auto first = ahead ? around_pass(graph_, hop_up(), p) : order_.position(p), last = order_.position(p);
    for (const auto& it : groups) {
      if (!brings_master(it.chunks.first, p)) continue;
      first = std::min(first, order_.update(it.chunks.first));
      last = std::max(last, around_update(graph_, back_of(hop_up()), it.chunks.end() - 1));
    }
    const auto window = graph_.add_buffer(BufferClass::window, host_bytes(p), first, last, TierKind::device);
    graph_.lets_go(graph_.task_of(p), window);
    at(p).here = window;
    for (const auto& it : groups) upload(it, window, p);
  }

  /// Copies that take changes are on the device as they lie on the host.
  void place_copies() {
    Place place{copy_};
    for (auto c = chunks_.first; c < chunks_.end(); ++c) {
      if (graph_.takes_change(c)) graph_.place_copy(c, place);
      place.offset += graph_.weight_bytes(c);
    }
  }

  /// `apart`: what is trainable and what is not is sent at different times.
  [[nodiscard]] std::vector<Coalesced> copies(bool apart) const {
    const auto ends = [this](Index c) {
      return is_changed(c) != is_changed(c - 1) || graph_.takes_change(c) != graph_.takes_change(c - 1);
    };
    return parts_of(graph_, hop_up(), chunks_, size_of(), apart ? Separate(ends) : Separate{});
  }

  [[nodiscard]] Bytes host_bytes(Index p) const { return out_.buffers[graph_.host_weights[p][object_].buffer].bytes; }

  /// The first pass that reads such chunks does so after their update, which takes the weights from the same copy. Of
  /// several processes each brings its own apart (add_update_hops), as a gather comes between update and pass.
  [[nodiscard]] bool brings_master(Index c, Index p) const {
    const bool alone = graph_.gathers[p] == kNone;
    return alone && graph_.placement[c].device_updated() && traits(out_.passes[p].kind).phase != Phase::backward;
  }

  Index upload(const Coalesced& it, Index there, Index p) {
    const auto& weights = host_at(p);
    const auto first = it.chunks.first;
    const Move move{{ObjectKind::weight, first, it.chunks.count}, {weights.buffer, it.at}, {there, it.at}, it.bytes};
    const auto up = bring(move, p);
    const auto gather = graph_.gathers[p];  // which comes after all that this process updates and reads itself
    graph_.need(up, gather);
    out_.tasks[up].when.from_others = gather != kNone && is_changed(first);
    const bool master = brings_master(first, p);
    if (master) {
      out_.tasks[up].when.phase = Phase::forward;
      out_.tasks[up].deadline = order_.update(first);
      graph_.master_uploads.push_back(up);
    }
    for (auto c = first; (gather == kNone || is_asked()) && c < it.chunks.end(); ++c) {
      if (!master) graph_.need(up, graph_.find_event(c, ChunkEvent::weight_updated));
      if (!weights.reads.empty()) graph_.need(up, weights.reads[c - chunks_.first]);
    }
    return up;
  }

  StepGraph& graph_;
  const StepOrder& order_;
  Schedule& out_;
  const WeightUse& use_;
  const Range chunks_;
  const std::vector<Index>& passes_;
  const std::size_t object_;
  Index whole_ = kNone;                   ///< buffer of all its chunks, where passes read them in place
  Index copy_ = kNone;                    ///< that stays on the device
  std::vector<Index> uploads_, readers_;  ///< tasks that bring it, and passes that read it
};

/// Objects that passes read together come from other processes by one gather.
void follow(StepGraph& graph, const WeightUse& use) {
  std::vector<WeightRoute> routes;
  for (std::size_t i = 0; i < use.objects.size(); ++i) routes.emplace_back(graph, use, i);
  for (std::size_t i = 0; i < use.passes.size(); ++i) {
    const auto p = use.passes[i];
    for (auto& it : routes) it.bring_to_host(i);
    if (graph.description.is_shared()) {
      const bool any = std::ranges::any_of(routes, [&](const WeightRoute& it) { return it.finds(i); });
      const auto before = any ? graph.gathers[use.passes[i - 1]] : kNone, sent = add_gather(graph, p);
      graph.need(sent, before);
      graph.gathers[p] = sent != kNone ? sent : before;
    }
    if (graph.computes_on_host(p)) continue;
    for (auto& it : routes) it.bring_to_device(i);
  }
  for (auto& it : routes) it.replace_between();
}

}  // namespace

void add_weights(StepGraph& graph) {
  for (const auto& use : weights_of(graph.order, graph.layout)) follow(graph, use);
}

}  // namespace spillway::plan::step
