#include "spillway/plan/passing.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "spillway/plan/joined.h"

namespace spillway::plan {
namespace {

class PassingStates {
 public:
  PassingStates(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                const DeviceResidency& residency, const Lookahead& lookahead)
      : out_(schedule),
        layout_(layout),
        rule_(rule),
        residency_(residency),
        ahead_(lookahead.device),
        join_(lookahead.join) {}

  void run() {
    const auto chunks = static_cast<Index>(layout_.chunks().size());
    copies_.assign(chunks, {});
    out_.passing.assign(chunks, {});
    find_visits();
    const auto before = static_cast<Index>(out_.tasks.size());
    for (Index t = 0; t < before; ++t) {
      if (brings_master(t)) add_weights(t);
    }
    for (Index c = 0; c < chunks; ++c) {
      if (!passes(c)) continue;
      add_state(c);
      if (!residency_.keeps_gradient(c)) continue;
      out_.passing[c].grad = out_.update_grad[c];
      out_.passing[c].grad_at = out_.grad_at[c];
    }
    for (const auto& it : gradients_that_come()) add_gradients(it);
    for (Index t = 0; t < before; ++t) follow(t);
    for (Index c = 0; c < chunks; ++c) {
      if (passes(c)) link(c);
    }
  }

 private:
  /// Tasks of one chunk; those of weights and gradients may be of its neighbours, too.
  struct Copies {
    Index weight_up = kNone, state_up = kNone, grad_up = kNone;
    Index weight_down = kNone, state_down = kNone;
    Index reader = kNone;       ///< the visit that follows the update
    std::vector<Index> visits;  ///< all that read the weight or make the gradient
  };

  [[nodiscard]] bool passes(Index c) const { return residency_.passes(c); }
  [[nodiscard]] std::uint32_t tick(Index c) const { return out_.tasks[out_.update_task[c]].deadline; }
  [[nodiscard]] Index window(Index c) const { return out_.visits[copies_[c].reader].weights; }

  /// Positions of the updates so many chunks before and after.
  [[nodiscard]] std::uint32_t tick_before(Index c) const {
    auto out = tick(c);
    for (auto other = c - std::min(c, ahead_); other < c; ++other) {
      if (out_.update_task[other] != kNone) out = std::min(out, tick(other));
    }
    return out;
  }
  [[nodiscard]] std::uint32_t tick_after(Index c) const {
    auto out = tick(c);
    const auto end = std::min<std::size_t>(std::size_t{c} + ahead_ + 1, layout_.chunks().size());
    for (auto other = c + 1; other < end; ++other) {
      if (out_.update_task[other] != kNone) out = std::max(out, tick(other));
    }
    return out;
  }

  void need(Index task, Index on, bool previous = false) {
    if (task != kNone && on != kNone) out_.tasks[task].needs.push_back({on, previous});
  }

  void find_visits() {
    for (Index v = 0; v < out_.visits.size(); ++v) {
      const auto& visit = out_.visits[v];
      if (visit.on_host) continue;
      const auto& block = layout_.blocks()[visit.block];
      const bool layer = block.role == state::BlockRole::layer;
      const auto first = static_cast<Index>(block.first_chunk + (layer ? 0 : visit.slice));
      for (auto c = first; c < first + (layer ? block.chunks : 1); ++c) {
        if (!passes(c)) continue;
        if (copies_[c].reader == kNone) copies_[c].reader = v;
        copies_[c].visits.push_back(v);
      }
    }
  }

  // ---- copies

  Index copy(TaskKind kind, Lane lane, Index subject, Index there, Index here, Bytes bytes, std::uint32_t deadline) {
    out_.tasks.push_back({.kind = kind,
                          .lane = lane,
                          .subject = subject,
                          .buffer = there,
                          .host_buffer = here,
                          .bytes = bytes,
                          .deadline = deadline,
                          .phase = Phase::update});
    return static_cast<Index>(out_.tasks.size() - 1);
  }

  Index add_staging(BufferClass kind, Bytes bytes, std::uint32_t first, std::uint32_t last) {
    out_.buffers.push_back({.kind = kind, .tier = Tier::device, .bytes = bytes, .first = first, .last = last});
    return static_cast<Index>(out_.buffers.size() - 1);
  }

  /// Whether the task copies chunks that pass to where they are updated.
  [[nodiscard]] bool brings_master(Index t) const {
    const auto& task = out_.tasks[t];
    return task.kind == TaskKind::upload_weight && passes(task.subject) && task.buffer == window(task.subject);
  }

  /// They come before the update, and the same chunks go back after it.
  void add_weights(Index up) {
    auto& task = out_.tasks[up];
    const auto first = task.subject, last = task.subject + task.count - 1;
    task.phase = Phase::forward;
    task.deadline = tick(first);
    auto& there = out_.buffers[task.buffer];
    const auto down = copy(TaskKind::download_weight, Lane::from_device, first, task.buffer, task.host_buffer,
                           task.bytes, tick_after(last));
    auto& back = out_.tasks[down];
    back.buffer_offset = out_.tasks[up].buffer_offset;
    back.host_offset = out_.tasks[up].host_offset;
    back.count = out_.tasks[up].count;
    if (!there.whole) {
      there.first = std::min(there.first, tick(first));
      there.last = std::max(there.last, tick_after(last));
      there.last_tasks.push_back(down);
    }
    need(up, down, true);
    for (auto c = first; c <= last; ++c) {
      copies_[c].weight_up = up;
      copies_[c].weight_down = down;
      out_.passing[c].weight = back.buffer;
      out_.passing[c].weight_at = out_.weight_at[c];
    }
  }

  void add_state(Index c) {
    const auto here = out_.update_state[c];
    const auto bytes = out_.buffers[here].bytes;
    const auto there = add_staging(BufferClass::staging, bytes, tick_before(c), tick_after(c));
    auto& its = copies_[c];
    its.state_up = copy(TaskKind::upload_state, Lane::to_device, c, there, here, bytes, tick(c));
    its.state_down = copy(TaskKind::download_state, Lane::from_device, c, there, here, bytes, tick_after(c));
    out_.buffers[there].first_tasks.push_back(its.state_up);
    out_.buffers[there].last_tasks.push_back(its.state_down);
    need(its.state_up, its.state_down, true);
    out_.passing[c].state = there;
  }

  /// Those that lie behind one another on the host are one copy.
  [[nodiscard]] std::vector<Joined> gradients_that_come() const {
    const auto comes = [&](Index c) { return passes(c) && !residency_.keeps_gradient(c); };
    const auto bytes = [&](Index c) { return state::grad_bytes(rule_, layout_.chunks()[c]); };
    std::vector<Joined> out;
    const auto chunks = static_cast<Index>(layout_.chunks().size());
    for (Index c = 0; c < chunks;) {
      Range range{c, 1};
      if (comes(c)) {
        const auto here = out_.update_grad[c];
        while (range.end() < chunks && comes(range.end()) && out_.update_grad[range.end()] == here) ++range.count;
        std::ranges::move(joined(range, join_, bytes), std::back_inserter(out));
      }
      c = range.end();
    }
    return out;
  }

  void add_gradients(const Joined& it) {
    const auto first = it.chunks.first, last = it.chunks.end() - 1;
    const auto here = out_.update_grad[first];
    const auto there = add_staging(BufferClass::grad, it.bytes, tick_before(first), tick(last));
    const auto up = copy(TaskKind::upload_grad, Lane::to_device, first, there, here, it.bytes, tick(first));
    out_.tasks[up].count = it.chunks.count;
    out_.tasks[up].host_offset = out_.grad_at[first];
    out_.buffers[there].first_tasks.push_back(up);
    for (auto c = first; c <= last; ++c) {
      out_.buffers[there].last_tasks.push_back(out_.update_task[c]);
      std::ranges::replace(out_.buffers[here].last_tasks, out_.update_task[c], up);
      copies_[c].grad_up = up;
      out_.passing[c].grad = there;
      out_.passing[c].grad_at = out_.grad_at[c] - out_.grad_at[first];
    }
  }

  // ---- who waits for whom

  /// Of the chunk that passes and that the task belongs to, when it waits for its update now.
  [[nodiscard]] Index after_update(const Task& task, Index c) const {
    const auto& its = copies_[c];
    return task.kind == TaskKind::write_state ? its.state_down : its.weight_down;
  }

  /// What followed an update on the host follows the copy back; the copy that brings the master comes before it.
  void follow(Index t) {
    auto& task = out_.tasks[t];
    if (task.kind == TaskKind::visit) return;
    const auto updates = [&](const Dependency& it) {
      const auto& other = out_.tasks[it.task];
      return !it.previous && other.kind == TaskKind::update && passes(other.subject);
    };
    if (brings_master(t)) {
      std::erase_if(task.needs, updates);
      return;
    }
    for (auto& it : task.needs) {
      if (updates(it)) it.task = after_update(task, out_.tasks[it.task].subject);
    }
  }

  void link(Index c) {
    const auto update = out_.update_task[c];
    const auto& its = copies_[c];
    out_.tasks[update].lane = Lane::device_update;
    for (const auto& it : std::exchange(out_.tasks[update].needs, {})) hand_over(it, its);
    for (const auto up : {its.weight_up, its.state_up, its.grad_up}) need(update, up);
    for (const auto down : {its.weight_down, its.state_down}) need(down, update);
    need(update, its.weight_down, true);
    for (const auto v : its.visits) {
      const auto& visit = out_.visits[v];
      const bool makes = visit.grad != kNone && residency_.keeps_gradient(c);
      if (makes || out_.buffers[window(c)].whole) need(update, visit.task, true);
    }
  }

  /// What the update on the host waited for.
  void hand_over(const Dependency& it, const Copies& its) {
    switch (out_.tasks[it.task].kind) {
      case TaskKind::read_state:
        return need(its.state_up, it.task, it.previous);
      case TaskKind::write_state:  // an image is whole with both parts: neither may begin anew before
      case TaskKind::write_weight:
        need(its.state_down, it.task, it.previous);
        return need(its.weight_down, it.task, it.previous);
      case TaskKind::read_grad:
      case TaskKind::download_grad:
      case TaskKind::fit:
        return need(its.grad_up, it.task, it.previous);
      default:  // a read of the weight, which the copy waits for
        return;
    }
  }

  Schedule& out_;
  const state::Layout& layout_;
  const state::UpdateRule& rule_;
  const DeviceResidency& residency_;
  const Index ahead_;
  const Bytes join_;
  std::vector<Copies> copies_;  ///< by chunk
};

}  // namespace

void let_pass(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
              const DeviceResidency& residency, const Lookahead& lookahead) {
  if (std::ranges::find(residency.passing, true) == residency.passing.end()) return;
  PassingStates(schedule, layout, rule, residency, lookahead).run();
}

}  // namespace spillway::plan
