#include "spillway/plan/device_lanes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "spillway/plan/joined.h"
#include "spillway/plan/learned.h"
#include "spillway/plan/passing.h"

namespace spillway::plan {
namespace {

/// Where a copy's bytes lie on one side.
struct Place {
  Index buffer = kNone;
  Bytes offset = 0;
};

class DeviceLanes {
 public:
  DeviceLanes(Schedule& schedule, const Description& description, const state::Layout& layout,
              const DeviceResidency& residency, const Lookahead& lookahead)
      : out_(schedule),
        layout_(layout),
        residency_(residency),
        lookahead_(lookahead),
        ahead_(lookahead.device),
        join_(lookahead.join),
        element_(state::field_bytes(description.type).weight),
        rule_(description.rule()) {}

  void run() {
    find();
    for (Index v = 0; v < out_.visits.size(); ++v) {
      if (!out_.visits[v].on_host && out_.visits[v].weights != kNone) add_weights(v);
    }
    keep_residents();
    for (Index c = 0; c < layout_.chunks().size(); ++c) {
      if (residency_.lives(c)) keep_chunk(c);
    }
    for (const auto& it : image_groups(layout_, rule_, residency_, join_)) stage_images(it);
    for (Index i = 0; i < forward_.size(); ++i) add_border(i);
    if (!forward_.empty()) move(out_.visits[forward_.back()].output);
    for (Index v = 0; v < out_.visits.size(); ++v) {
      if (out_.visits[v].grad != kNone) add_gradient(v);
    }
    move(out_.hidden_gradient);
    move(out_.accumulator);
    move(out_.widened);
    if (embedding_backward_ != kNone) hand_back();
    let_pass(out_, layout_, rule_, residency_, lookahead_);
    bring_learned(out_, layout_, rule_, residency_);
  }

 private:
  void find() {
    backward_.assign(layout_.blocks().size(), kNone);
    for (Index v = 0; v < out_.visits.size(); ++v) {
      auto& visit = out_.visits[v];
      visit.on_host = visit.kind == VisitKind::embedding || visit.kind == VisitKind::embedding_backward;
      if (visit.kind == VisitKind::embedding) embedding_.push_back(v);
      if (visit.kind == VisitKind::embedding_backward) embedding_backward_ = v;
      if (visit.kind == VisitKind::forward) forward_.push_back(v);
      if (visit.kind == VisitKind::backward) backward_[visit.block] = v;
    }
    for (Index t = 0; t < out_.tasks.size(); ++t) {
      const auto& task = out_.tasks[t];
      if (task.kind == TaskKind::read_weight) reads_[{task.buffer, task.subject}] = t;
      if (task.kind == TaskKind::read_activation) border_reads_[task.buffer] = t;
      if (task.kind == TaskKind::write_activation) border_writes_[task.buffer] = t;
      if (task.kind == TaskKind::write_grad) grad_writes_[task.subject] = t;
      const bool image = task.kind == TaskKind::write_weight || task.kind == TaskKind::write_state;
      if (image && residency_.lives(task.subject)) image_writes_[{task.kind, task.subject}] = t;
    }
  }

  // ---- small parts

  [[nodiscard]] Index task_of(Index visit) const { return out_.visits[visit].task; }
  [[nodiscard]] std::uint32_t position(Index visit) const { return out_.visits[visit].position; }
  [[nodiscard]] std::uint32_t before(Index visit) const { return position(visit - std::min(visit, ahead_)); }
  [[nodiscard]] std::uint32_t after(Index visit) const {
    return position(std::min<Index>(visit + ahead_, static_cast<Index>(out_.visits.size() - 1)));
  }
  Buffer& buffer(Index index) { return out_.buffers[index]; }
  void need(Index task, Index on, bool previous = false) {
    if (task != kNone && on != kNone) out_.tasks[task].needs.push_back({on, previous});
  }
  static void drop(std::vector<Index>& tasks, Index task) { std::erase(tasks, task); }
  /// What waited for a visit now waits for a copy of what it made.
  void wait_for_copy(Index task, Index visit, Index copy) {
    auto& needs = out_.tasks[task].needs;
    for (auto& it : needs) {
      if (it.task == task_of(visit) && !it.previous) it.task = copy;
    }
  }

  void move(Index index) {
    if (index != kNone) buffer(index).tier = Tier::device;
  }

  Index add_buffer(BufferClass kind, Bytes bytes, std::uint32_t first, std::uint32_t last, Tier tier = Tier::device) {
    out_.buffers.push_back({.kind = kind, .tier = tier, .bytes = bytes, .first = first, .last = last});
    return static_cast<Index>(out_.buffers.size() - 1);
  }

  Index upload(TaskKind kind, Index subject, Place device, Place host, Bytes bytes, Index visit) {
    const auto task = copy(kind, Lane::to_device, subject, device, host, bytes, position(visit));
    out_.tasks[task].stays = buffer(device.buffer).whole;
    out_.tasks[task].phase = out_.tasks[task_of(visit)].phase;
    buffer(device.buffer).first_tasks.push_back(task);
    if (!buffer(host.buffer).whole) buffer(host.buffer).last_tasks.push_back(task);
    need(task_of(visit), task);
    return task;
  }

  Index download(TaskKind kind, Index subject, Place device, Place host, Bytes bytes, Index visit) {
    const auto task = copy(kind, Lane::from_device, subject, device, host, bytes, buffer(device.buffer).last);
    out_.tasks[task].phase = Phase::backward;
    buffer(device.buffer).last_tasks.push_back(task);
    buffer(host.buffer).first_tasks.push_back(task);
    need(task, task_of(visit));
    return task;
  }

  Index copy(TaskKind kind, Lane lane, Index subject, Place device, Place host, Bytes bytes, std::uint32_t deadline) {
    out_.tasks.push_back({.kind = kind,
                          .lane = lane,
                          .subject = subject,
                          .buffer = device.buffer,
                          .buffer_offset = device.offset,
                          .host_buffer = host.buffer,
                          .host_offset = host.offset,
                          .bytes = bytes,
                          .deadline = deadline});
    return static_cast<Index>(out_.tasks.size() - 1);
  }

  // ---- chunks

  /// What learns and what does not is sent at different times.
  [[nodiscard]] Parted where_learning_ends() const {
    return [this](Index c) { return learns(c) != learns(c - 1); };
  }

  [[nodiscard]] bool learns(Index c) const { return state::learns(layout_.chunks()[c].learning); }

  // ---- weights

  [[nodiscard]] Range chunks_of(const Visit& visit) const { return plan::chunks_of(layout_, visit); }

  void add_weights(Index v) {
    auto& visit = out_.visits[v];
    const auto host = visit.weights;
    const auto chunks = chunks_of(visit);
    if (residency_.lives(chunks.first)) return read_in_place(v);
    drop(buffer(host).last_tasks, task_of(v));
    if (residency_.weight[chunks.first]) {
      auto& users = residents_[chunks.first];
      users.push_back(v);
      if (users.size() > 1) {
        visit.weights = out_.visits[users.front()].weights;
        return;
      }
    } else if (v > 0 && same_slice(out_.visits[v - 1], visit)) {  // the turn from the first pass over a head
      visit.weights = out_.visits[v - 1].weights;
      buffer(visit.weights).last = visit.position;
      buffer(visit.weights).last_tasks.push_back(task_of(v));
      return;
    }
    const auto bytes = buffer(host).bytes;
    const bool stays = residency_.weight[chunks.first];
    visit.weights = add_buffer(stays ? BufferClass::weight : BufferClass::window, bytes, stays ? 0 : before(v),
                               stays ? 0 : visit.position);
    buffer(visit.weights).whole = stays;
    if (!stays) buffer(visit.weights).last_tasks.push_back(task_of(v));
    const auto size = [&](Index c) { return layout_.chunks()[c].elements * element_; };
    const bool apart = stays || residency_.passes(chunks.first);
    const auto parted = apart ? where_learning_ends() : Parted{};
    for (const auto& it : joined(chunks, join_, size, parted)) upload_weights(it, visit.weights, host, v);
  }

  void upload_weights(const Joined& it, Index there, Index host, Index v) {
    const auto first = it.chunks.first;
    const auto task = upload(TaskKind::upload_weight, first, {there, it.at}, {host, it.at}, it.bytes, v);
    out_.tasks[task].count = it.chunks.count;
    for (auto c = first; c < it.chunks.end(); ++c) {
      need(task, out_.update_task[c]);
      const auto read = reads_.find({host, c});
      if (read == reads_.end()) continue;
      need(task, read->second);
      out_.tasks[read->second].stays = out_.tasks[task].stays;
    }
  }

  [[nodiscard]] bool same_slice(const Visit& a, const Visit& b) const {
    return !a.on_host && layout_.blocks()[b.block].role != state::BlockRole::layer && a.block == b.block &&
           a.slice == b.slice;
  }

  /// The copies that stay are replaced, where they have changed, when the visits of the step before have read them.
  void keep_residents() {
    for (const auto& [chunk, users] : residents_) {
      const auto weights = out_.visits[users.front()].weights;
      for (const auto copy : std::vector(buffer(weights).first_tasks)) {
        for (const auto user : users) need(copy, task_of(user), true);
      }
    }
  }

  // ---- chunks that live there

  /// An update changes what visits of the step before have read.
  void read_in_place(Index v) {
    const auto chunks = chunks_of(out_.visits[v]);
    for (auto c = chunks.first; c < chunks.first + chunks.count; ++c) need(out_.update_task[c], task_of(v), true);
  }

  void keep_chunk(Index c) {
    for (const auto there : {out_.update_weight[c], out_.update_state[c]}) move(there);
    out_.resident_weight[layout_.chunks()[c].block] = out_.resident_slice[c] = out_.resident_state[c] = kNone;
    if (out_.update_task[c] == kNone) return;
    out_.tasks[out_.update_task[c]].lane = Lane::device_update;
  }

  void stage_images(const ImageGroup& group) {
    stage_images(TaskKind::write_weight, group.chunks);
    for (const auto& it : group.states) stage_images(TaskKind::write_state, it.chunks);
  }

  /// What is written of images leaves through the host, before the next updates change it.
  void stage_images(TaskKind kind, Range chunks) {
    if (!image_writes_.contains({kind, chunks.first})) return;
    const auto last = chunks.end() - 1;
    const auto staging = add_buffer(BufferClass::staging, 0, tick(last), tick_after(last), Tier::host);
    const auto task = image_copy(kind, chunks, staging);
    buffer(staging).first_tasks.push_back(task);
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      const auto write = image_writes_.at({kind, c}), update = out_.update_task[c];
      need(task, update);
      replace(update, {write, true}, task);
      replace(write, {update, false}, task);
      through(write, staging, out_.tasks[task].bytes);
      out_.tasks[task].bytes += out_.tasks[write].bytes;
    }
    buffer(staging).bytes = out_.tasks[task].bytes;
  }

  /// Of no bytes yet.
  Index image_copy(TaskKind kind, Range chunks, Index staging) {
    const auto first = out_.tasks[image_writes_.at({kind, chunks.first})];
    const auto task =
        copy(kind == TaskKind::write_weight ? TaskKind::download_weight : TaskKind::download_state, Lane::from_device,
             chunks.first, {first.buffer, first.buffer_offset}, {staging}, 0, buffer(staging).last);
    out_.tasks[task].count = chunks.count;
    out_.tasks[task].phase = first.phase;
    out_.tasks[task].every = first.every;
    out_.tasks[task].turn = first.turn;
    return task;
  }

  /// A write takes its bytes from `staging`.
  void through(Index write, Index staging, Bytes offset) {
    auto& it = out_.tasks[write];
    it.buffer = staging;
    it.buffer_offset = offset;
    it.deadline = buffer(staging).last;
    buffer(staging).last_tasks.push_back(write);
  }

  void replace(Index task, Dependency old, Index by) {
    for (auto& need : out_.tasks[task].needs) {
      if (need.task == old.task && need.previous == old.previous) need.task = by;
    }
  }

  [[nodiscard]] std::uint32_t tick(Index c) const { return out_.tasks[out_.update_task[c]].deadline; }
  /// Position of the update that comes `ahead` chunks later.
  [[nodiscard]] std::uint32_t tick_after(Index c) const {
    auto out = tick(c);
    const auto end = std::min<std::size_t>(c + ahead_ + 1, layout_.chunks().size());
    for (auto later = c + 1; later < end; ++later) {
      if (out_.update_task[later] != kNone) out = std::max(out, tick(later));
    }
    return out;
  }

  /// The chunks whose gradients a visit makes.
  [[nodiscard]] Range made_by(const Visit& visit) const {
    auto out = chunks_of(visit);
    const auto& block = layout_.blocks()[visit.block];
    if (block.role == state::BlockRole::layer) out.count = static_cast<Index>(block.learning_chunks);
    return out;
  }

  /// A gradient stays where it was made until the update; what a durable step keeps of it is a copy.
  void keep_gradient(Index v) {
    const auto& visit = out_.visits[v];
    move(visit.grad);
    move(visit.grad_sum);
    const auto chunks = made_by(visit);
    if (!grad_writes_.contains(chunks.first)) return;
    const auto staging = add_buffer(BufferClass::grad, buffer(visit.grad).bytes, visit.position, after(v), Tier::host);
    const auto size = [&](Index c) { return grad_bytes(rule_, layout_.chunks()[c]); };
    for (const auto& it : joined(chunks, join_, size)) log_gradients(it, visit, staging);
  }

  void log_gradients(const Joined& it, const Visit& visit, Index staging) {
    const auto task = copy(TaskKind::download_grad, Lane::from_device, it.chunks.first, {visit.grad, it.at},
                           {staging, it.at}, it.bytes, buffer(staging).last);
    out_.tasks[task].count = it.chunks.count;
    out_.tasks[task].phase = Phase::backward;
    need(task, visit.task);
    auto& earlier = buffer(visit.grad).earlier_tasks;
    auto at = it.at;
    for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
      const auto write = grad_writes_.at(c);
      drop(earlier, write);
      replace(write, {visit.task, false}, task);
      through(write, staging, at);
      at += grad_bytes(rule_, layout_.chunks()[c]);
    }
    earlier.push_back(task);
    buffer(staging).first_tasks.push_back(task);
  }

  // ---- border activations

  void add_border(Index i) {
    const auto user = forward_[i];
    const auto back = backward_[out_.visits[user].block];
    const auto host = out_.visits[user].input;
    if (host == kNone) return;
    const bool gathered = i == 0 && !embedding_.empty();
    const auto maker = i > 0 ? forward_[i - 1] : user;
    const bool stays = residency_.activation[i] || back == kNone;
    if (gathered) out_.embedding_output = host;
    if (stays && !gathered) return move(host);
    const auto returned = back == kNone ? host : out_.visits[back].input;
    const auto bytes = buffer(host).bytes;
    const auto last = stays && back != kNone ? back : user;
    const auto there = add_buffer(BufferClass::activation, bytes, gathered ? before(user) : position(maker),
                                  gathered ? position(last) : std::max(position(last), after(maker)));
    buffer(there).last_tasks.push_back(task_of(last));
    drop(buffer(host).last_tasks, task_of(user));
    if (back != kNone) drop(buffer(returned).last_tasks, task_of(back));
    const auto source = gathered ? embedding_.back() : maker;
    auto arrival = task_of(source);
    if (gathered) {
      need(upload(TaskKind::upload_activation, i, {there}, {host}, bytes, user), arrival);
      if (const auto write = border_writes_.find(host); write != border_writes_.end()) {
        wait_for_copy(write->second, user, arrival);
      }
    } else {
      buffer(there).first_tasks.push_back(task_of(maker));
      drop(buffer(host).first_tasks, task_of(maker));
      arrival = download(TaskKind::download_activation, i, {there}, {host}, bytes, maker);
      if (const auto write = border_writes_.find(host); write != border_writes_.end()) {
        wait_for_copy(write->second, i > 0 ? maker : user, arrival);
      }
      if (i > 0) out_.visits[maker].output = there;
    }
    out_.visits[user].input = there;
    if (stays) {
      if (back != kNone) out_.visits[back].input = there;
      if (gathered) buffer(host).last = position(user);
      return;
    }
    bring_back(i, bytes, returned, arrival);
  }

  /// For backward, from where it lies on the host.
  void bring_back(Index i, Bytes bytes, Index host, Index arrival) {
    const auto back = backward_[out_.visits[forward_[i]].block];
    const auto there = add_buffer(BufferClass::activation, bytes, before(back), position(back));
    buffer(there).last_tasks.push_back(task_of(back));
    const auto task = upload(TaskKind::upload_activation, i, {there}, {host}, bytes, back);
    const auto read = border_reads_.find(host);
    need(task, read != border_reads_.end() ? read->second : arrival);
    out_.visits[back].input = there;
  }

  // ---- gradients

  void add_gradient(Index v) {
    auto& visit = out_.visits[v];
    if (residency_.keeps_gradient(chunks_of(visit).first)) return keep_gradient(v);
    const auto host = visit.grad;
    visit.grad = add_buffer(BufferClass::grad, buffer(host).bytes, visit.position, after(v));
    buffer(visit.grad).first_tasks.push_back(task_of(v));
    drop(buffer(host).first_tasks, task_of(v));
    move(visit.grad_sum);
    const auto size = [&](Index c) { return grad_bytes(rule_, layout_.chunks()[c]); };
    for (const auto& it : joined(made_by(visit), join_, size)) download_gradients(it, visit.grad, host, v);
  }

  void download_gradients(const Joined& it, Index there, Index host, Index v) {
    const auto first = it.chunks.first;
    const auto task = download(TaskKind::download_grad, first, {there, it.at}, {host, it.at}, it.bytes, v);
    out_.tasks[task].count = it.chunks.count;
    for (auto c = first; c < it.chunks.end(); ++c) {
      if (const auto write = grad_writes_.find(c); write != grad_writes_.end()) wait_for_copy(write->second, v, task);
      if (out_.early[c].task != kNone) wait_for_copy(out_.early[c].task, v, task);
      if (out_.fit_task[c] != kNone) wait_for_copy(out_.fit_task[c], v, task);
      if (out_.update_grad[c] == host) need(out_.update_task[c], task, true);
    }
  }

  /// The gradient of the embedding's output goes to the host.
  void hand_back() {
    auto& visit = out_.visits[embedding_backward_];
    if (out_.hidden_gradient == kNone) return;
    const auto maker = embedding_backward_ - 1;
    auto& there = buffer(out_.hidden_gradient);
    const auto bytes = there.bytes;
    drop(there.last_tasks, visit.task);
    out_.embedding_gradient = add_buffer(BufferClass::scratch, bytes, position(maker), visit.position, Tier::host);
    buffer(out_.embedding_gradient).last_tasks.push_back(visit.task);
    need(visit.task,
         download(TaskKind::download_hidden, kNone, {out_.hidden_gradient}, {out_.embedding_gradient}, bytes, maker));
  }

  Schedule& out_;
  const state::Layout& layout_;
  const DeviceResidency& residency_;
  const Lookahead& lookahead_;
  const std::uint32_t ahead_;
  const Bytes join_;
  const Bytes element_;  ///< bytes of an element of a weight
  const state::UpdateRule rule_;
  std::vector<Index> embedding_, forward_;  ///< visits, in order
  std::vector<Index> backward_;             ///< visit by block
  Index embedding_backward_ = kNone;
  std::map<std::pair<Index, Index>, Index> reads_;            ///< of weights, by buffer and chunk
  std::map<Index, Index> border_reads_, border_writes_;       ///< by buffer
  std::map<Index, Index> grad_writes_;                        ///< by chunk
  std::map<std::pair<TaskKind, Index>, Index> image_writes_;  ///< of chunks that live there
  std::map<Index, std::vector<Index>> residents_;             ///< by chunk: the visits that read what stays
};

}  // namespace

void add_device(Schedule& schedule, const Description& description, const state::Layout& layout,
                const DeviceResidency& residency, const Lookahead& lookahead) {
  DeviceLanes(schedule, description, layout, residency, lookahead).run();
}

}  // namespace spillway::plan
