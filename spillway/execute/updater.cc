#include "spillway/execute/updater.h"

#include <algorithm>
#include <cstring>

namespace spillway::execute {

Updater::Updater(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                 std::byte* arena, const SparseEmbedding* rows, sink::GradientSink& sink)
    : schedule_(schedule),
      layout_(layout),
      rule_(rule),
      arena_(arena),
      rows_(rows),
      sink_(sink),
      undo_(schedule, arena),
      waiting_(schedule),
      is_zero_(layout.chunks().size(), 0) {
  Bytes largest = 0;
  for (const auto& task : schedule.tasks) {
    const bool waits = task.op == plan::Op::update && task.when.waits();
    if (!waits && !brings_if_asked(task)) continue;
    for (auto c = task.what.index; c < task.what.end(); ++c) {
      largest = std::max(largest, grad_bytes(rule, layout.chunks()[c]));
    }
  }
  zeros_.resize(largest);
  for (std::size_t lane = 0; lane < schedule.update_lanes(); ++lane) updates_.emplace_back(layout, rule_);
}

/// The unit of a chunk's update; the first where there is no update.
std::size_t Updater::unit_of(plan::Index chunk) const {
  const auto task = schedule_.update_task[chunk];
  return task == plan::kNone ? 0 : schedule_.tasks[task].unit;
}

std::byte* Updater::at(const plan::Place& place) const {
  return arena_ + schedule_.buffers[place.buffer].offset + place.offset;
}

std::byte* Updater::grad(plan::Index chunk, bool early) const {
  if (is_zero_[chunk] != 0) return zeros_.data();
  return at(early ? schedule_.early[chunk].grad : schedule_.groups[chunk].grad);
}

state::GroupPointers Updater::groups(plan::Index chunk, bool early) const {
  const auto& it = schedule_.groups[chunk];
  auto* const change = schedule_.takes_change(chunk) ? at(schedule_.changes[chunk].here) : nullptr;
  return {at(it.weight), at(it.state), grad(chunk, early), change};
}

void Updater::prepare(plan::Index chunk, bool early) {
  const auto& it = layout_.chunks()[chunk];
  update_of(chunk).prepare(chunk, groups(chunk, early));
  if (rows_ == nullptr || it.block != rows_->block()) return;
  if (!rows_->dense()) std::memset(grad(chunk, early), 0, grad_bytes(rule_, it));
  rows_->patch(it, grad(chunk, early));
}

bool Updater::take_updates(plan::Index chunk, bool has_gradient) {
  if (!waiting_.take(chunk)) return false;
  expect_gradient(chunk, has_gradient);
  return true;
}

void Updater::run(plan::Index chunk, std::size_t part, std::size_t tile, bool early) {
  if (schedule_.update_waits(chunk)) {
    for (const auto& step : waiting_.list_steps(chunk)) {
      update_of(chunk).run(chunk, groups(chunk, early), step, part, tile);
    }
    return;
  }
  update_of(chunk).run(chunk, groups(chunk, early), early ? early_step_ : step_, part, tile);
}

void Updater::finish(plan::Index chunk, bool early) {
  update_of(chunk).finish(chunk, groups(chunk, early));
}

bool Updater::refits(plan::Index chunk) const {
  return layout_.chunks()[chunk].reduced.any() && sink_.refits(tensor(chunk));
}

/// On the host, where the gradient's record is or the new fields leave for where that is. Of several processes the
/// fields go to that of the chunk (GradientExchange::refit_arrived()).
void Updater::end_refit(plan::Index chunk) {
  const auto& to = schedule_.tasks[schedule_.refit_task[chunk]].to;
  sink_.end_refit(tensor(chunk), to.any() ? at(to) : nullptr);
}

}  // namespace spillway::execute
