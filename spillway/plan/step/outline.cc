#include "spillway/plan/step/outline.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <set>
#include <tuple>

namespace spillway::plan::step {
namespace {

constexpr std::size_t kAllLayers = 5;  // at most so many are drawn, each of them

/// Place of each task in an order in which one lane could run them all, the earliest deadline first.
std::vector<Index> places_in_order(const Schedule& schedule) {
  const auto& tasks = schedule.tasks;
  std::vector<std::vector<Index>> followers(tasks.size());
  std::vector<std::size_t> waits(tasks.size(), 0);
  for (Index t = 0; t < tasks.size(); ++t) {
    for (const auto& need : tasks[t].needs) {
      if (need.previous) continue;
      followers[need.task].push_back(t);
      ++waits[t];
    }
  }
  using Entry = std::pair<std::uint32_t, Index>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  const auto offer = [&](Index t) { ready.emplace(tasks[t].deadline, t); };
  for (Index t = 0; t < tasks.size(); ++t) {
    if (waits[t] == 0) offer(t);
  }
  std::vector<Index> out(tasks.size(), kNone);
  for (Index place = 0; !ready.empty(); ++place) {
    const auto t = ready.top().second;
    ready.pop();
    out[t] = place;
    for (const auto next : followers[t]) {
      if (--waits[next] == 0) offer(next);
    }
  }
  return out;
}

class Outliner {
 public:
  Outliner(const Schedule& schedule, const state::Layout& layout)
      : schedule_(schedule), layout_(layout), layers_(layout.layers()), drawn_(layout.blocks().size(), true) {
    choose();
    make_boxes();
    connect();
  }

  Outline take() {
    for (std::size_t lane = 0; lane < kLanes.size(); ++lane) {
      if (next_row_[lane] > 0) out_.lanes.push_back(static_cast<Lane>(lane));
    }
    return std::move(out_);
  }

 private:
  void choose() {
    out_.layers = out_.drawn = layers_.size();
    if (layers_.size() <= kAllLayers) return;
    const std::set<std::size_t> kept{layers_.front(), layers_[layers_.size() / 2], layers_.end()[-2], layers_.back()};
    for (const auto b : layers_) drawn_[b] = kept.contains(b);
    out_.drawn = kept.size();
  }

  [[nodiscard]] std::size_t block_of(const Task& task) const {
    if (task.op == Op::compute) return schedule_.passes[task.what.index].block;
    const auto numbered = traits(task.what.kind).numbered;
    if (numbered == Numbered::by_layer) return layers_[std::min<std::size_t>(task.what.index, layers_.size() - 1)];
    if (numbered == Numbered::by_chunk) return layout_.chunks()[task.what.index].block;
    const auto* table = layout_.embedding();
    return table == nullptr ? 0 : static_cast<std::size_t>(table - layout_.blocks().data());
  }

  [[nodiscard]] KindLabel kind_of(const Task& task) const {
    if (task.op != Op::compute) return label_of(task.op, task.lane, task.what.kind);
    const auto& pass = traits(schedule_.passes[task.what.index].kind);
    return {pass.name, pass.colour};
  }

  /// Boxes in the order of the first task of each.
  void make_boxes() {
    const auto places = places_in_order(schedule_);
    std::vector<Index> tasks(schedule_.tasks.size());
    for (Index t = 0; t < tasks.size(); ++t) tasks[t] = t;
    std::ranges::sort(tasks, {}, [&](Index t) { return places[t]; });
    std::map<std::tuple<Lane, std::string, Phase, std::size_t>, Index> known;
    box_.assign(tasks.size(), kNone);
    for (const auto t : tasks) {
      const auto& task = schedule_.tasks[t];
      const auto block = block_of(task);
      if (!drawn_[block]) continue;
      const auto kind = kind_of(task);
      const auto next = static_cast<Index>(out_.boxes.size());
      const auto [it, is_new] = known.try_emplace({task.lane, kind.name, task.when.phase, block}, next);
      if (is_new) out_.boxes.push_back({.lane = task.lane, .kind = kind, .block = layout_.blocks()[block].name});
      box_[t] = it->second;
      auto& box = out_.boxes[it->second];
      ++box.tasks;
      if (task.op == Op::transfer) box.bytes += task.bytes;
    }
  }

  /// Earlier boxes that each box waits for. Waits of tasks that come later, the other way round, are left out.
  [[nodiscard]] std::vector<std::set<Index, std::greater<>>> needs() const {
    std::vector<std::set<Index, std::greater<>>> out(out_.boxes.size());
    for (Index t = 0; t < box_.size(); ++t) {
      if (box_[t] == kNone) continue;
      for (const auto& need : schedule_.tasks[t].needs) {
        const auto on = box_[need.task];
        if (!need.previous && on != kNone && on < box_[t]) out[box_[t]].insert(on);
      }
    }
    return out;
  }

  void connect() {
    const auto all = needs();
    std::vector<std::vector<bool>> behind(all.size(), std::vector<bool>(all.size(), false));
    Index pass = kNone;
    for (Index b = 0; b < all.size(); ++b) {
      auto& box = out_.boxes[b];
      unsigned row = next_row_[static_cast<std::size_t>(box.lane)];
      const auto add = [&](Index on, bool skips) {
        if (behind[b][on]) return;
        out_.arrows.push_back({on, b, skips});
        row = std::max(row, out_.boxes[on].row + 1);
        behind[b][on] = true;
        for (Index i = 0; i < on; ++i) behind[b][i] = behind[b][i] || behind[on][i];
      };
      for (const auto on : all[b]) add(on, false);
      if (box.lane == Lane::compute) {
        if (pass != kNone) add(pass, true);
        pass = b;
      }
      box.row = row;
      next_row_[static_cast<std::size_t>(box.lane)] = row + 1;
    }
  }

  const Schedule& schedule_;
  const state::Layout& layout_;
  const std::vector<std::size_t>& layers_;
  std::vector<bool> drawn_;  ///< by block
  std::vector<Index> box_;   ///< by task; kNone: it is not drawn
  std::array<unsigned, kLanes.size()> next_row_{};
  Outline out_;
};

}  // namespace

Outline outline(const Schedule& schedule, const state::Layout& layout) {
  return Outliner(schedule, layout).take();
}

}  // namespace spillway::plan::step
