#include "spillway/plan/learned.h"

#include <algorithm>

namespace spillway::plan {
namespace {

class Learned {
 public:
  Learned(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
          const DeviceResidency& residency)
      : out_(schedule), layout_(layout), rule_(rule), residency_(residency) {}

  void run() {
    add_delta();
    if (out_.delta == kNone) return;
    writes_.assign(layout_.chunks().size(), kNone);
    for (Index t = 0; t < out_.tasks.size(); ++t) {
      if (out_.tasks[t].kind == TaskKind::write_grad) writes_[out_.tasks[t].subject] = t;
    }
    for (const auto& visit : std::vector(out_.visits)) {
      if (visit.kind == VisitKind::backward) add(visit);
    }
  }

 private:
  /// Where projectors are learned: a host buffer, and the copy that the fit follows.
  struct Place {
    Index buffer = kNone;
    Bytes offset = 0;
    Index arrival = kNone;
  };

  /// One update runs at a time.
  void add_delta() {
    Bytes most = 0;
    for (Index c = 0; c < layout_.chunks().size(); ++c) {
      const bool there = residency_.lives(c) || residency_.passes(c);
      if (there) most = std::max(most, layout_.chunks()[c].subspace.elements() * sizeof(float));
    }
    if (most == 0) return;
    out_.buffers.push_back({.kind = BufferClass::scratch, .tier = Tier::device, .bytes = most, .whole = true});
    out_.delta = static_cast<Index>(out_.buffers.size() - 1);
  }

  void add(const Visit& visit) {
    const auto& block = layout_.blocks()[visit.block];
    std::vector<Index> chunks;
    for (auto c = static_cast<Index>(block.first_chunk); c < block.first_chunk + block.chunks; ++c) {
      if (out_.fit_task[c] != kNone && residency_.keeps_gradient(c)) chunks.push_back(c);
    }
    if (chunks.empty()) return;
    if (writes_[chunks.front()] != kNone) {
      for (const auto c : chunks) bring(c, visit, logged(c));
      return;
    }
    auto place = staging(visit, chunks);
    for (const auto c : chunks) {
      bring(c, visit, place);
      place.offset += pair(c).bytes;
    }
  }

  [[nodiscard]] state::PairFields pair(Index c) const { return state::pair_fields(layout_.chunks()[c].subspace); }
  /// In the gradient's buffer.
  [[nodiscard]] Bytes pair_at(Index c) const { return out_.grad_at[c] + core_bytes(rule_, layout_.chunks()[c]); }

  /// In the copy of its gradient that goes to a path, behind the fit.
  [[nodiscard]] Place logged(Index c) const {
    const auto& write = out_.tasks[writes_[c]];
    const auto copy = std::ranges::find_if(write.needs, [&](const Dependency& it) {
      return !it.previous && out_.tasks[it.task].kind == TaskKind::download_grad;
    });
    return {write.buffer, write.buffer_offset + core_bytes(rule_, layout_.chunks()[c]), copy->task};
  }

  /// For pairs alone, one behind the other.
  Place staging(const Visit& visit, const std::vector<Index>& chunks) {
    Bytes bytes = 0;
    for (const auto c : chunks) bytes += pair(c).bytes;
    const auto first = chunks.front();
    const auto here = static_cast<Index>(out_.buffers.size());
    out_.buffers.push_back({.kind = BufferClass::grad,
                            .tier = Tier::host,
                            .bytes = bytes,
                            .first = visit.position,
                            .last = out_.positions - 1});
    const auto arrival = copy({.kind = TaskKind::download_record,
                               .lane = Lane::from_device,
                               .subject = first,
                               .count = chunks.back() - first + 1,
                               .buffer = out_.update_grad[first],
                               .buffer_offset = pair_at(first),
                               .host_buffer = here,
                               .bytes = sizeof(state::FitRecord),
                               .deadline = out_.tasks[out_.fit_task[first]].deadline,
                               .needs = {{visit.task}}});
    out_.buffers[here].first_tasks.push_back(arrival);
    return {here, 0, arrival};
  }

  Index copy(Task task) {
    task.phase = Phase::backward;
    out_.tasks.push_back(std::move(task));
    const auto out = static_cast<Index>(out_.tasks.size() - 1);
    out_.buffers[out_.tasks[out].buffer].earlier_tasks.push_back(out);
    return out;
  }

  /// Its values: the record there is that of the visit.
  void bring(Index c, const Visit& visit, const Place& place) {
    auto& fit = out_.tasks[out_.fit_task[c]];
    fit.buffer = place.buffer;
    fit.buffer_offset = place.offset;
    for (auto& need : fit.needs) {
      if (need.task == visit.task && !need.previous) need.task = place.arrival;
    }
    const auto fields = pair(c);
    const auto up = copy({.kind = TaskKind::upload_pair,
                          .lane = Lane::to_device,
                          .subject = c,
                          .buffer = out_.update_grad[c],
                          .buffer_offset = pair_at(c) + fields.p,
                          .host_buffer = place.buffer,
                          .host_offset = place.offset + fields.p,
                          .bytes = fields.bytes - fields.p,
                          .deadline = fit.deadline,
                          .needs = {{out_.fit_task[c]}}});
    out_.buffers[place.buffer].last_tasks.push_back(up);
    out_.tasks[out_.update_task[c]].needs.push_back({up, true});
  }

  Schedule& out_;
  const state::Layout& layout_;
  const state::UpdateRule& rule_;
  const DeviceResidency& residency_;
  std::vector<Index> writes_;  ///< of gradients, by chunk
};

}  // namespace

void bring_learned(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                   const DeviceResidency& residency) {
  Learned(schedule, layout, rule, residency).run();
}

}  // namespace spillway::plan
