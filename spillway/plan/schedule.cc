#include "spillway/plan/schedule.h"

#include <algorithm>

#include "spillway/plan/device_lanes.h"
#include "spillway/plan/joined.h"
#include "spillway/plan/subspace_share.h"

namespace spillway::plan {
namespace {

using state::BlockRole;

class Builder {
 public:
  Builder(const Description& description, const state::Layout& layout, const Residency& residency,
          const Lookahead& lookahead, const Redo& redo)
      : description_(description),
        layout_(layout),
        residency_(residency),
        ahead_(lookahead),
        redo_(redo),
        bytes_(state::field_bytes(description.type)) {}

  Schedule build() {
    prepare();
    place_events();
    add_updates();
    add_borders();
    add_forward();
    add_head();
    add_backward();
    add_widened();
    chain_visits();
    set_nodes(out_, residency_);
    return std::move(out_);
  }

 private:
  // ---- events ----

  void prepare() {
    const auto chunks = layout_.chunks().size();
    out_.update_task.assign(chunks, kNone);
    out_.fit_task.assign(chunks, kNone);
    for (auto* list : {&out_.resident_slice, &out_.resident_state, &out_.update_weight, &out_.update_state,
                       &out_.update_grad, &write_weight_, &write_state_, &write_grad_, &read_state_}) {
      list->assign(chunks, kNone);
    }
    out_.early.assign(chunks, {});
    image_writes_.assign(chunks, {});
    for (auto* list : {&out_.weight_at, &out_.state_at, &out_.grad_at}) list->assign(chunks, 0);
    with_before_.assign(chunks, false);
    state_bytes_.assign(chunks, 0);
    if (residency_.device) join_images();
    time_images();
    out_.resident_weight.assign(layout_.blocks().size(), kNone);
    tick_.assign(chunks, 0);
    for (Index b = 0; b < layout_.blocks().size(); ++b) {
      const auto role = layout_.blocks()[b].role;
      if (role == BlockRole::layer) layers_.push_back(b);
      if (role == BlockRole::embedding) embedding_ = b;
      if (role == BlockRole::head) head_ = b;
    }
    if (description_.tied_head) head_ = embedding_;
    lowest_ = first_backward(layout_);
  }

  /// What lives on a device leaves it by large copies: neighbours have their images in the same steps, and their states
  /// lie behind one another.
  void join_images() {
    for (const auto& group : image_groups(layout_, description_.rule(), *residency_.device, ahead_.join)) {
      for (auto c = group.chunks.first + 1; c < group.chunks.end(); ++c) with_before_[c] = true;
      for (const auto& it : group.states) state_bytes_[it.chunks.first] = it.bytes;
    }
  }

  /// Chunks whose state is resident write their images in turn.
  void time_images() {
    const auto chunks = layout_.chunks().size();
    out_.image_every.assign(chunks, 0);
    out_.image_turn.assign(chunks, 0);
    std::uint32_t next = 0;
    for (Index c = 0; c < chunks && redo_.gradients; ++c) {
      if (!learns(c)) continue;
      out_.image_every[c] = residency_.state[c] ? redo_.period : 1;
      if (!residency_.state[c]) continue;
      out_.image_turn[c] = with_before_[c] ? out_.image_turn[c - 1] : next++ % redo_.period;
    }
  }

  [[nodiscard]] const state::Block& block(Index b) const { return layout_.blocks()[b]; }
  [[nodiscard]] const state::Chunk& chunk(Index c) const { return layout_.chunks()[c]; }
  [[nodiscard]] bool learns(Index c) const { return state::learns(chunk(c).learning); }
  [[nodiscard]] Bytes grad_bytes(Index c) const { return state::grad_bytes(description_.rule(), chunk(c)); }
  [[nodiscard]] Index chunk_of(Index b, std::size_t i) const { return static_cast<Index>(block(b).first_chunk + i); }

  Index event_visit(VisitKind kind, Index b, Index slice = 0) {
    const auto index = static_cast<Index>(out_.visits.size());
    out_.visits.push_back({.kind = kind, .block = b, .slice = slice, .position = out_.positions++});
    return index;
  }

  void place_events() {
    for (Index b = 0; b < layout_.blocks().size(); ++b) {
      for (std::size_t i = 0; i < block(b).chunks; ++i) {
        tick_[chunk_of(b, i)] = out_.positions++;
        const auto slice = static_cast<Index>(i);
        if (block(b).role == BlockRole::embedding) embed_visits_.push_back(event_visit(VisitKind::embedding, b, slice));
        if (block(b).role == BlockRole::head) loss_visits_.push_back(event_visit(VisitKind::head_loss, b, slice));
      }
      if (block(b).role == BlockRole::layer) forward_visits_.push_back(event_visit(VisitKind::forward, b));
    }
    last_tick_ = tick_.back();
    if (description_.tied_head) {
      for (Index s = 0; s < block(head_).chunks; ++s) {
        loss_visits_.push_back(event_visit(VisitKind::head_loss, head_, s));
      }
    }
    if (head_ != kNone) {
      // From the last slice down: the slices that pass 1 left in memory are the first of pass 2.
      for (auto s = static_cast<Index>(block(head_).chunks); s-- > 0;) {
        gradient_visits_.push_back(event_visit(VisitKind::head_gradient, head_, s));
      }
    }
    backward_start_ = out_.positions;
    backward_visits_.assign(layers_.size(), kNone);
    for (auto i = layers_.size(); i-- > lowest_;) backward_visits_[i] = event_visit(VisitKind::backward, layers_[i]);
    if (table_learns()) embedding_backward_ = event_visit(VisitKind::embedding_backward, embedding_);
    for (Index v = 0; v < out_.visits.size(); ++v) {
      out_.visits[v].task = add_task({.kind = TaskKind::visit,
                                      .lane = Lane::compute,
                                      .subject = v,
                                      .deadline = out_.visits[v].position,
                                      .phase = phase_of(out_.visits[v].kind)});
    }
  }

  [[nodiscard]] bool table_learns() const { return embedding_ != kNone && block(embedding_).learning_chunks > 0; }
  [[nodiscard]] bool any_backward() const { return lowest_ < layers_.size(); }
  /// The visits between which the gradient of hidden states lives: from the head or the last layer to whoever uses it
  /// last. kNone: there is no such gradient.
  [[nodiscard]] Index first_differentiated() const {
    return head_ != kNone ? gradient_visits_.front() : any_backward() ? backward_visits_.back() : kNone;
  }
  [[nodiscard]] Index last_differentiated() const {
    if (embedding_backward_ != kNone) return embedding_backward_;
    return any_backward() ? backward_visits_[lowest_] : head_ != kNone ? gradient_visits_.back() : kNone;
  }

  static Phase phase_of(VisitKind kind) {
    if (kind == VisitKind::embedding || kind == VisitKind::forward) return Phase::forward;
    return kind == VisitKind::head_loss ? Phase::head_loss : Phase::backward;
  }

  [[nodiscard]] std::uint32_t position(Index visit) const { return out_.visits[visit].position; }

  /// Position `ahead` chunks before the update of c (not before the start of the step).
  [[nodiscard]] std::uint32_t before_tick(Index c, std::uint32_t ahead) const {
    return tick_[c > ahead ? c - ahead : 0];
  }

  /// Position at which a buffer of chunk c is let go: `write` chunks later, and in time for the next step's reads.
  [[nodiscard]] std::uint32_t after_tick(Index c) const {
    const auto n = tick_.size();
    const auto later = c + static_cast<std::size_t>(ahead_.write);
    const auto at = later < n ? tick_[later] : last_tick_ + static_cast<std::uint32_t>(later - (n - 1));
    const auto limit = c < ahead_.state_read ? backward_start_ - 1 : out_.positions - 1;
    return std::max(tick_[c], std::min(at, limit));
  }

  // ---- small constructors ----

  Index add_task(Task task) {
    out_.tasks.push_back(std::move(task));
    return static_cast<Index>(out_.tasks.size() - 1);
  }

  Index add_buffer(BufferClass kind, Bytes bytes, std::uint32_t first, std::uint32_t last) {
    out_.buffers.push_back({.kind = kind, .bytes = bytes, .first = first, .last = last});
    return static_cast<Index>(out_.buffers.size() - 1);
  }

  Index add_whole(BufferClass kind, Bytes bytes) {
    const auto index = add_buffer(kind, bytes, 0, 0);
    out_.buffers[index].whole = true;
    return index;
  }

  Buffer& buffer(Index index) { return out_.buffers[index]; }
  void need(Index task, Index on, bool previous = false) {
    if (task != kNone && on != kNone) out_.tasks[task].needs.push_back({on, previous});
  }
  [[nodiscard]] Index task_of(Index visit) const { return out_.visits[visit].task; }

  Index transfer(TaskKind kind, Index subject, Index buffer_index, Bytes offset, Bytes bytes, std::uint32_t deadline,
                 Phase phase) {
    const bool reads = kind <= TaskKind::read_activation;
    const auto task = add_task({.kind = kind,
                                .lane = reads ? Lane::read : Lane::write,
                                .subject = subject,
                                .buffer = buffer_index,
                                .buffer_offset = offset,
                                .bytes = bytes,
                                .deadline = deadline,
                                .phase = phase});
    auto& ends = reads ? buffer(buffer_index).first_tasks : buffer(buffer_index).last_tasks;
    ends.push_back(task);
    return task;
  }

  // ---- updates ----

  void add_updates() {
    for (Index c = 0; c < layout_.chunks().size(); ++c) {
      if (!learns(c)) continue;
      out_.update_task[c] = add_task({.kind = TaskKind::update,
                                      .lane = Lane::update,
                                      .subject = c,
                                      .bytes = state::update_elements(description_.rule(), chunk(c)),
                                      .deadline = tick_[c],
                                      .phase = Phase::update});
      add_state(c);
    }
  }

  void add_state(Index c) {
    const auto bytes = state::state_bytes(description_.rule(), chunk(c));
    if (residency_.state[c]) {
      keep_state(c, bytes);
      add_image_part(TaskKind::write_state, c, out_.resident_state[c], out_.state_at[c], bytes);
      return;
    }
    const bool ahead = c < ahead_.state_read;
    const auto first = ahead ? backward_start_ : before_tick(c, ahead_.state_read);
    const auto staging = add_buffer(BufferClass::staging, bytes, first, after_tick(c));
    out_.update_state[c] = staging;
    const auto read = transfer(TaskKind::read_state, c, staging, 0, bytes, tick_[c] + (ahead ? out_.positions : 0),
                               ahead ? Phase::ahead : Phase::update);
    const auto write = transfer(TaskKind::write_state, c, staging, 0, bytes, after_tick(c), Phase::update);
    need(read, write, !ahead);
    need(out_.update_task[c], read, ahead);
    need(write, out_.update_task[c]);
    read_state_[c] = read;
    write_state_[c] = write;
  }

  /// On a device it may lie behind that of the chunk before it, in one buffer.
  void keep_state(Index c, Bytes bytes) {
    auto& there = out_.resident_state[c];
    if (with_before_[c] && state_bytes_[c] == 0) {
      there = out_.resident_state[c - 1];
      out_.state_at[c] = out_.state_at[c - 1] + state::state_bytes(description_.rule(), chunk(c - 1));
    } else {
      there = add_whole(BufferClass::state, std::max(bytes, state_bytes_[c]));
    }
    out_.update_state[c] = there;
  }

  /// Writes what is resident of a chunk's image, before the next update changes it.
  void add_image_part(TaskKind kind, Index c, Index resident, Bytes offset, Bytes bytes) {
    if (!redo_.gradients) return;
    const auto write = transfer(kind, c, resident, offset, bytes, tick_[c] + out_.positions, Phase::update);
    out_.tasks[write].every = out_.image_every[c];
    out_.tasks[write].turn = out_.image_turn[c];
    need(write, out_.update_task[c]);
    need(out_.update_task[c], write, true);
    image_writes_[c].push_back(write);
  }

  /// The update of chunk c as soon as `visit` has made its gradient, and room for what it changes until the step ends.
  void add_early(Index c, Index visit, Index grad, Bytes offset) {
    if (residency_.undo.empty() || !residency_.undo[c] || !can_be_early(layout_, residency_, c)) return;
    const auto at = position(visit);
    const auto task = add_task({.kind = TaskKind::update,
                                .lane = Lane::update,
                                .subject = c,
                                .bytes = state::update_elements(description_.rule(), chunk(c)),
                                .deadline = at,
                                .phase = Phase::early});
    const auto bytes = chunk(c).elements * bytes_.weight + buffer(out_.resident_state[c]).bytes;
    const auto undo = add_buffer(BufferClass::undo, bytes, at, out_.positions - 1);
    buffer(undo).first_tasks.push_back(task);
    buffer(undo).last_tasks.push_back(task);
    if (!residency_.grad[c]) buffer(grad).last_tasks.push_back(task);
    need(task, task_of(visit));
    need(out_.update_task[c], task, true);
    for (const auto write : image_writes_[c]) {
      out_.tasks[write].deadline = at;
      need(task, write);
    }
    out_.early[c] = {.task = task, .undo = undo, .grad = grad, .grad_at = offset};
  }

  /// The gradient of chunk c on its way back to the update: from where backward left it.
  void add_update_grad(Index c, Index resident, Bytes offset) {
    const auto update = out_.update_task[c];
    if (resident != kNone) {
      out_.update_grad[c] = resident;
      out_.grad_at[c] = offset;
      buffer(resident).last_tasks.push_back(update);
      return;
    }
    const auto bytes = grad_bytes(c);
    const bool dense = has_dense_grad(description_, layout_, c);
    const auto first = dense ? before_tick(c, ahead_.weight_read) : tick_[c];
    const auto staging = add_buffer(BufferClass::staging, bytes, first, tick_[c]);
    out_.update_grad[c] = staging;
    buffer(staging).last_tasks.push_back(update);
    if (!dense) {
      buffer(staging).first_tasks.push_back(update);
      return;
    }
    const auto read = transfer(TaskKind::read_grad, c, staging, 0, bytes, tick_[c], Phase::update);
    need(read, write_grad_[c], true);
    need(update, read);
  }

  // ---- forward ----

  /// Reads chunk c's weight into `window` at `offset` for its update and its visit, and writes it after the update.
  /// What does not learn is only read.
  void add_weight_round(Index c, Index window, Bytes offset, Index visit) {
    const auto bytes = chunk(c).elements * bytes_.weight;
    const auto read = transfer(TaskKind::read_weight, c, window, offset, bytes, tick_[c], Phase::forward);
    need(task_of(visit), read);
    out_.update_weight[c] = window;
    out_.weight_at[c] = offset;
    if (!learns(c)) return;
    const auto write = transfer(TaskKind::write_weight, c, window, offset, bytes, after_tick(c), Phase::update);
    need(read, write, true);
    need(out_.update_task[c], read);
    need(write, out_.update_task[c]);
    write_weight_[c] = write;
  }

  /// Where the weight of a chunk that stays in memory lies.
  void keep_weight(Index c, Index weights, Bytes offset) {
    out_.update_weight[c] = weights;
    out_.weight_at[c] = offset;
    if (learns(c)) add_image_part(TaskKind::write_weight, c, weights, offset, chunk(c).elements * bytes_.weight);
  }

  /// Position until which a visit and the writes after the updates of `count` chunks need what is read for them.
  [[nodiscard]] std::uint32_t until_written(Index visit, Index first, std::size_t count) const {
    const auto at = position(visit);
    return count == 0 ? at : std::max(at, after_tick(static_cast<Index>(first + count - 1)));
  }

  void add_forward() {
    for (std::size_t i = 0; i < layers_.size(); ++i) add_layer_forward(layers_[i], forward_visits_[i]);
    if (embedding_ == kNone) return;
    for (Index s = 0; s < block(embedding_).chunks; ++s) add_slice_forward(embedding_, s, embed_visits_[s]);
  }

  void add_layer_forward(Index b, Index visit) {
    const auto bytes = block(b).elements * bytes_.weight;
    const auto first = chunk_of(b, 0);
    const auto last = chunk_of(b, block(b).chunks - 1);
    Index weights = kNone;
    if (residency_.weight[first]) {
      weights = out_.resident_weight[b] = add_whole(BufferClass::weight, bytes);
    } else {
      weights = add_buffer(BufferClass::window, bytes, before_tick(first, ahead_.weight_read),
                           until_written(visit, first, block(b).learning_chunks));
      buffer(weights).last_tasks.push_back(task_of(visit));
    }
    Bytes offset = 0;
    for (auto c = first; c <= last; ++c) {
      if (residency_.weight[c]) {
        keep_weight(c, weights, offset);
      } else {
        add_weight_round(c, weights, offset, visit);
      }
      need(task_of(visit), out_.update_task[c]);
      offset += chunk(c).elements * bytes_.weight;
    }
    out_.visits[visit].weights = weights;
  }

  void add_slice_forward(Index b, Index slice, Index visit) {
    const auto c = chunk_of(b, slice);
    const auto bytes = chunk(c).elements * bytes_.weight;
    Index weights = kNone;
    if (residency_.weight[c]) {
      weights = out_.resident_slice[c] = add_whole(BufferClass::weight, bytes);
      keep_weight(c, weights, 0);
    } else {
      weights = add_buffer(BufferClass::window, bytes, before_tick(c, ahead_.weight_read),
                           until_written(visit, c, learns(c) ? 1 : 0));
      buffer(weights).last_tasks.push_back(task_of(visit));
      add_weight_round(c, weights, 0, visit);
    }
    need(task_of(visit), out_.update_task[c]);
    out_.visits[visit].weights = weights;
  }

  // ---- borders ----

  void add_borders() {
    if (description_.hidden == 0) return;
    const auto bytes = round_up(description_.border_bytes(), 4096);
    const auto layers = layers_.size();
    border_out_.assign(layers + 1, kNone);
    border_in_.assign(layers + 1, kNone);
    for (std::size_t i = 0; i < layers; ++i) {
      // The first border is filled by the embedding's visits, or by the caller in the first forward visit.
      const auto maker = i > 0                   ? forward_visits_[i - 1]
                         : embed_visits_.empty() ? forward_visits_[0]
                                                 : embed_visits_.front();
      const auto user = forward_visits_[i];
      const auto back = backward_visits_[i];
      if (residency_.activation[i] || back == kNone) {
        const auto last = back == kNone ? user : back;
        border_out_[i] = border_in_[i] = add_buffer(BufferClass::activation, bytes, position(maker), position(last));
        buffer(border_out_[i]).first_tasks.push_back(task_of(maker));
        buffer(border_out_[i]).last_tasks.push_back(task_of(last));
      } else {
        spill_border(static_cast<Index>(i), bytes, maker, user, back);
      }
    }
    const auto end = head_ != kNone   ? gradient_visits_.back()
                     : any_backward() ? backward_visits_.back()
                                      : forward_visits_.back();
    const auto last = add_buffer(BufferClass::activation, bytes, position(forward_visits_.back()), position(end));
    buffer(last).first_tasks.push_back(task_of(forward_visits_.back()));
    buffer(last).last_tasks.push_back(task_of(end));
    border_out_[layers] = border_in_[layers] = last;
    for (std::size_t i = 0; i < layers; ++i) {
      out_.visits[forward_visits_[i]].input = border_out_[i];
      out_.visits[forward_visits_[i]].output = border_out_[i + 1];
      if (backward_visits_[i] != kNone) out_.visits[backward_visits_[i]].input = border_in_[i];
    }
    if (head_ == kNone && any_backward()) out_.visits[backward_visits_.back()].output = last;
  }

  void spill_border(Index border, Bytes bytes, Index maker, Index user, Index back) {
    const auto leave = std::min(position(user) + 1 + ahead_.backward, backward_start_ - 1);
    border_out_[border] = add_buffer(BufferClass::activation, bytes, position(maker), std::max(position(user), leave));
    buffer(border_out_[border]).first_tasks.push_back(task_of(maker));
    buffer(border_out_[border]).last_tasks.push_back(task_of(user));
    const auto write = transfer(TaskKind::write_activation, border, border_out_[border], 0, bytes,
                                buffer(border_out_[border]).last, Phase::backward);
    need(write, task_of(border == 0 ? user : maker));
    border_in_[border] = add_buffer(BufferClass::activation, bytes, before_visit(back), position(back));
    buffer(border_in_[border]).last_tasks.push_back(task_of(back));
    const auto read =
        transfer(TaskKind::read_activation, border, border_in_[border], 0, bytes, position(back), Phase::backward);
    need(read, write);
    need(write, read, true);
    need(task_of(back), read);
  }

  /// The copy of a weight that forward has brought to the device is still there.
  [[nodiscard]] bool on_device(Index c) const { return residency_.device && residency_.device->weight[c]; }
  [[nodiscard]] Index weights_of(Index layer) const {
    const auto i = std::ranges::find(layers_, layer) - layers_.begin();
    return out_.visits[forward_visits_[static_cast<std::size_t>(i)]].weights;
  }

  /// Position from which a backward visit's bytes may be read: after the last update of the step.
  [[nodiscard]] std::uint32_t before_visit(Index visit) const {
    const auto at = position(visit);
    const auto early = at > ahead_.backward ? at - ahead_.backward : 0;
    return std::min(at, std::max(early, last_tick_ + 1));
  }

  // ---- head ----

  void add_head() {
    if (head_ == kNone) return;
    const auto slices = static_cast<Index>(block(head_).chunks);
    for (Index s = 0; s < slices; ++s) {
      const auto loss = loss_visits_[s];
      const auto gradient = gradient_visits_[slices - 1 - s];
      add_head_weights(s, loss, gradient, s + 1 == slices);
      if (block(head_).learning_chunks > 0) add_dense_grad(gradient, chunk_of(head_, s), 1);
      if (description_.hidden != 0) {
        out_.visits[loss].input = out_.visits[gradient].input = border_in_.back();
      }
    }
    const auto tokens = round_up(description_.tokens * description_.hidden, 2048);
    if (tokens == 0) return;
    const auto first = gradient_visits_.front();
    const auto last = any_backward() ? backward_visits_.back() : gradient_visits_.back();
    out_.accumulator = add_buffer(BufferClass::scratch, tokens * 4, position(first), position(last));
    buffer(out_.accumulator).first_tasks.push_back(task_of(first));
    buffer(out_.accumulator).last_tasks.push_back(task_of(last));
  }

  void add_head_weights(Index slice, Index loss, Index gradient, bool turn) {
    const auto c = chunk_of(head_, slice);
    if (!description_.tied_head) {
      add_slice_forward(head_, slice, loss);
    } else {
      need(task_of(loss), out_.update_task[c]);
      out_.visits[loss].weights = residency_.weight[c] ? out_.resident_slice[c] : read_again(c, loss);
    }
    auto& kept = buffer(out_.visits[loss].weights);
    if (residency_.weight[c] || on_device(c)) {
      out_.visits[gradient].weights = out_.visits[loss].weights;
    } else if (turn) {
      kept.last = std::max(kept.last, position(gradient));
      kept.last_tasks.push_back(task_of(gradient));
      out_.visits[gradient].weights = out_.visits[loss].weights;
    } else {
      out_.visits[gradient].weights = read_again(c, gradient);
    }
  }

  /// A window of its own for a visit that needs the weights of slice c once more.
  Index read_again(Index c, Index visit) {
    const auto bytes = chunk(c).elements * bytes_.weight;
    const auto at = position(visit);
    const auto early = at > ahead_.head ? at - ahead_.head : 0;
    const auto window = add_buffer(BufferClass::window, bytes, std::min(at, std::max(early, last_tick_ + 1)), at);
    buffer(window).last_tasks.push_back(task_of(visit));
    const auto read = transfer(TaskKind::read_weight, c, window, 0, bytes, at, phase_of(out_.visits[visit].kind));
    need(read, write_weight_[c]);
    need(task_of(visit), read);
    return window;
  }

  // ---- backward ----

  void add_backward() {
    for (std::size_t i = lowest_; i < layers_.size(); ++i) add_layer_backward(layers_[i], backward_visits_[i]);
    if (table_learns() && !description_.tied_head) {
      for (Index s = 0; s < block(embedding_).chunks; ++s) add_update_grad(chunk_of(embedding_, s), kNone, 0);
    }
    add_rows();
    const auto first = first_differentiated();
    const auto last = last_differentiated();
    if (description_.hidden == 0 || first == kNone) return;
    const auto bytes = round_up(description_.border_bytes(), 4096);
    out_.hidden_gradient = add_buffer(BufferClass::scratch, bytes, position(first), position(last));
    buffer(out_.hidden_gradient).first_tasks.push_back(task_of(first));
    buffer(out_.hidden_gradient).last_tasks.push_back(task_of(last));
  }

  /// The embedding's gradient of this step's tokens: a few rows, summed in fp32, rounded once, put in place by the
  /// update.
  void add_rows() {
    if (!table_learns()) return;
    const auto& table = block(embedding_);
    const auto elements = std::min(table.rows, description_.tokens) * table.columns;
    const auto back = position(embedding_backward_);
    const auto first = description_.tied_head ? gradient_visits_.front() : embedding_backward_;
    out_.row_sums = add_buffer(BufferClass::scratch, elements * 4, position(first), back);
    buffer(out_.row_sums).first_tasks.push_back(task_of(first));
    buffer(out_.row_sums).last_tasks.push_back(task_of(embedding_backward_));
    const auto bytes = rows_bytes(std::min(table.rows, description_.tokens), table.columns, bytes_.grad);
    out_.rows = add_buffer(BufferClass::grad, bytes, back, tick_[chunk_of(embedding_, table.chunks - 1)]);
    buffer(out_.rows).first_tasks.push_back(task_of(embedding_backward_));
    for (Bytes at = 0; redo_.gradients && at < bytes; at += kRowsPart) {
      log(TaskKind::write_rows, static_cast<Index>(at / kRowsPart), out_.rows, at, std::min(kRowsPart, bytes - at),
          embedding_backward_);
    }
    for (std::size_t s = 0; s < table.chunks; ++s) {
      buffer(out_.rows).last_tasks.push_back(out_.update_task[chunk_of(embedding_, s)]);
    }
  }

  void add_layer_backward(Index b, Index visit) {
    const auto first = chunk_of(b, 0);
    if (residency_.weight[first]) {
      out_.visits[visit].weights = out_.resident_weight[b];
    } else if (on_device(first)) {
      out_.visits[visit].weights = weights_of(b);
    } else {
      const auto window =
          add_buffer(BufferClass::window, block(b).elements * bytes_.weight, before_visit(visit), position(visit));
      buffer(window).last_tasks.push_back(task_of(visit));
      Bytes offset = 0;
      for (std::size_t i = 0; i < block(b).chunks; ++i) {
        const auto c = chunk_of(b, i);
        const auto bytes = chunk(c).elements * bytes_.weight;
        const auto read = transfer(TaskKind::read_weight, c, window, offset, bytes, position(visit), Phase::backward);
        need(read, write_weight_[c]);
        need(task_of(visit), read);
        offset += bytes;
      }
      out_.visits[visit].weights = window;
    }
    if (block(b).learning_chunks > 0) add_dense_grad(visit, first, block(b).learning_chunks);
  }

  /// The gradient of `chunks` chunks from `first` on, made by `visit` in one buffer.
  void add_dense_grad(Index visit, Index first, std::size_t chunks) {
    const auto at = position(visit);
    const auto last = static_cast<Index>(first + chunks - 1);
    std::uint64_t elements = 0;
    Bytes bytes = 0;
    for (auto c = first; c <= last; ++c) {
      elements += chunk(c).core;
      bytes += grad_bytes(c);
    }
    const bool resident = residency_.grad[first];
    const auto leave = resident ? tick_[last] : std::min(at + ahead_.grad_write, out_.positions - 1);
    const auto grad = add_buffer(BufferClass::grad, bytes, at, leave);
    buffer(grad).first_tasks.push_back(task_of(visit));
    out_.visits[visit].grad = grad;
    if (description_.micro_batches > 1 && description_.type != state::ComputeType::fp32) {
      const auto sum = add_buffer(BufferClass::scratch, elements * 4, at, at);
      buffer(sum).first_tasks.push_back(task_of(visit));
      buffer(sum).last_tasks.push_back(task_of(visit));
      out_.visits[visit].grad_sum = sum;
    }
    Bytes offset = 0;
    for (auto c = first; c <= last; ++c) {
      const auto size = grad_bytes(c);
      if (!resident) {
        write_grad_[c] = transfer(TaskKind::write_grad, c, grad, offset, size, leave, Phase::backward);
        need(write_grad_[c], task_of(visit));
      } else if (redo_.gradients) {
        const auto write = write_grad_[c] = log(TaskKind::write_grad, c, grad, offset, size, visit);
        // The update of a tied table puts rows into it.
        if (block(out_.visits[visit].block).role == BlockRole::embedding) need(out_.update_task[c], write, true);
      }
      add_update_grad(c, resident ? grad : kNone, offset);
      add_early(c, visit, grad, offset);
      if (chunk(c).subspace.rank > 0) add_fit(c, visit, grad, offset);
      offset += size;
    }
  }

  /// What the visit has left to learn of chunk c is part of its gradient before anything takes that.
  void add_fit(Index c, Index visit, Index grad, Bytes offset) {
    const auto fit = add_task({.kind = TaskKind::fit,
                               .lane = Lane::fit,
                               .subject = c,
                               .buffer = grad,
                               .buffer_offset = offset + core_bytes(description_.rule(), chunk(c)),
                               .bytes = fit_elements(description_.subspaces, chunk(c)),
                               .deadline = tick_[c] + out_.positions,
                               .phase = Phase::backward});
    out_.fit_task[c] = fit;
    need(fit, task_of(visit));
    need(out_.update_task[c], fit, true);
    need(out_.early[c].task, fit);
    need(write_grad_[c], fit);
  }

  /// Writes a gradient that stays in memory until its update, which is the next instance's.
  Index log(TaskKind kind, Index subject, Index gradient, Bytes offset, Bytes bytes, Index visit) {
    const auto write = add_task({.kind = kind,
                                 .lane = Lane::write,
                                 .subject = subject,
                                 .buffer = gradient,
                                 .buffer_offset = offset,
                                 .bytes = bytes,
                                 .deadline = out_.positions,
                                 .phase = Phase::backward});
    buffer(gradient).earlier_tasks.push_back(write);
    need(write, task_of(visit));
    return write;
  }

  /// One place for all visits, one after the other.
  void add_widened() {
    if (!description_.widens()) return;
    std::uint64_t most = 0;
    Index first = kNone, last = kNone;
    for (Index v = 0; v < out_.visits.size(); ++v) {
      const auto values = widened_values(layout_, out_.visits[v]);
      if (values == 0) continue;
      most = std::max(most, values);
      if (first == kNone) first = v;
      last = v;
    }
    if (first == kNone) return;
    out_.widened =
        add_buffer(BufferClass::scratch, round_up(most * sizeof(float), 4096), position(first), position(last));
    buffer(out_.widened).first_tasks.push_back(task_of(first));
    buffer(out_.widened).last_tasks.push_back(task_of(last));
  }

  void chain_visits() {
    for (Index v = 1; v < out_.visits.size(); ++v) need(task_of(v), task_of(v - 1));
  }

  const Description& description_;
  const state::Layout& layout_;
  const Residency& residency_;
  const Lookahead& ahead_;
  const Redo& redo_;
  const state::FieldBytes bytes_;

  Schedule out_;
  std::vector<Index> layers_;
  Index lowest_ = 0;  ///< layer with a backward visit
  Index embedding_ = kNone, head_ = kNone, embedding_backward_ = kNone;
  std::vector<std::uint32_t> tick_;
  std::uint32_t last_tick_ = 0, backward_start_ = 0;
  std::vector<Index> embed_visits_, forward_visits_, loss_visits_, gradient_visits_, backward_visits_;
  std::vector<Index> border_out_, border_in_;
  std::vector<Index> write_weight_, write_state_, write_grad_, read_state_;
  std::vector<std::vector<Index>> image_writes_;  ///< by chunk: what is resident of it
  std::vector<bool> with_before_;                 ///< by chunk: its images leave a device with those of the one before
  std::vector<Bytes> state_bytes_;                ///< by chunk: of its and those behind it in one buffer, or 0
};

}  // namespace

Range chunks_of(const state::Layout& layout, const Visit& visit) {
  const auto& block = layout.blocks()[visit.block];
  const auto first = static_cast<Index>(block.first_chunk);
  if (block.role == BlockRole::layer) return {first, static_cast<Index>(block.chunks)};
  return {first + visit.slice, 1};
}

std::uint64_t widened_values(const state::Layout& layout, const Visit& visit) {
  if (visit.kind == VisitKind::embedding || visit.kind == VisitKind::embedding_backward) return 0;
  const auto chunks = chunks_of(layout, visit);
  std::uint64_t out = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) out += layout.chunks()[c].values();
  return out;
}

std::uint64_t widened_first(const state::Layout& layout, std::size_t tensor) {
  const auto& block = layout.blocks()[layout.tensors()[tensor].block];
  std::uint64_t out = 0;
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    for (const auto& span : layout.spans(c)) {
      if (span.tensor == tensor) return out + span.chunk_first;
    }
    out += layout.chunks()[c].values();
  }
  return out;
}

void set_nodes(Schedule& schedule, const Residency& residency) {
  schedule.node = residency.node;
  for (Index c = 0; c < schedule.update_task.size(); ++c) {
    if (schedule.update_task[c] == kNone) continue;
    const auto unit = update_unit(residency, c);
    schedule.tasks[schedule.update_task[c]].unit = unit;
    if (schedule.early[c].task != kNone) schedule.tasks[schedule.early[c].task].unit = unit;
  }
}

Schedule make_schedule(const Description& description, const state::Layout& layout, const Residency& residency,
                       const Lookahead& lookahead, const Redo& redo) {
  if (!residency.device) return Builder(description, layout, residency, lookahead, redo).build();
  auto host = residency;  // what stays on the device has no place here
  for (Index i = 0; i < host.activation.size(); ++i) {
    if (residency.device->activation[i]) host.activation[i] = true;
  }
  auto out = Builder(description, layout, host, lookahead, redo).build();
  add_device(out, description, layout, *residency.device, lookahead);
  return out;
}

std::vector<bool> patient_updates(const Schedule& schedule) {
  std::vector<bool> out;
  for (const auto& task : schedule.tasks) {
    out.push_back((task.lane == Lane::update && task.phase == Phase::update) || task.lane == Lane::fit);
  }
  const auto each_need = [&](const auto& body) {
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      for (const auto& need : schedule.tasks[t].needs) body(t, schedule.tasks[t], need.task);
    }
  };
  each_need([&](Index t, const Task& task, Index need) {
    if (task.lane == Lane::read || task.lane == Lane::write || task.lane == Lane::to_device) {
      if (task.lane != Lane::write || schedule.tasks[need].lane == Lane::fit) out[need] = false;
    }
    if (schedule.tasks[need].lane == Lane::read) out[t] = false;
  });
  each_need([&](Index t, const Task& task, Index need) {  // what they wait for cannot wait either
    if (task.lane == Lane::update && !out[t] && schedule.tasks[need].lane == Lane::fit) out[need] = false;
  });
  return out;
}

}  // namespace spillway::plan
