#include "spillway/execute/updater.h"

#include <algorithm>
#include <cstring>

namespace spillway::execute {
std::size_t update_tiles(const state::Chunk& chunk) noexcept {
  return ceil_div(chunk.used, kUpdateTile);
}

void update_tile(const state::Layout& layout, const state::UpdateRule& rule, std::size_t chunk,
                 const state::GroupPointers& groups, const kernels::UpdateStep& step, std::size_t tile) {
  const auto begin = tile * kUpdateTile;
  const auto end = std::min(begin + kUpdateTile, layout.chunks()[chunk].used);
  update_spans(layout, rule, chunk, groups, step, begin, end, [](const auto& located, const auto& its_step) {
    kernels::update(located.form, located.span, its_step);
  });
}

Updater::Updater(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                 std::byte* arena, const EmbeddingRows* rows, Subspaces& subspaces)
    : schedule_(schedule),
      layout_(layout),
      rule_(rule),
      arena_(arena),
      rows_(rows),
      learned_(subspaces),
      undo_(schedule, arena) {
  std::size_t lanes = 0;
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    if (inside(c)) lanes = std::max<std::size_t>(lanes, schedule.tasks[schedule.update_task[c]].unit + 1U);
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) subspaces_.emplace_back(layout, rule_);
}

SubspaceUpdate& Updater::subspace(plan::Index chunk) {
  return subspaces_[schedule_.tasks[schedule_.update_task[chunk]].unit];
}

std::byte* Updater::at(plan::Index buffer) const {
  return arena_ + schedule_.buffers[buffer].offset;
}

std::byte* Updater::grad(plan::Index chunk, bool early) const {
  const auto& it = schedule_.early[chunk];
  return early ? at(it.grad) + it.grad_at : at(schedule_.update_grad[chunk]) + schedule_.grad_at[chunk];
}

state::GroupPointers Updater::groups(plan::Index chunk, bool early) const {
  return {at(schedule_.update_weight[chunk]) + schedule_.weight_at[chunk],
          at(schedule_.update_state[chunk]) + schedule_.state_at[chunk], grad(chunk, early)};
}

std::size_t Updater::first_tiles(plan::Index chunk) const {
  return inside(chunk) ? SubspaceUpdate::first_tiles(layout_.chunks()[chunk]) : 0;
}

std::size_t Updater::tiles(plan::Index chunk) const {
  return inside(chunk) ? SubspaceUpdate::tiles(layout_.chunks()[chunk]) : update_tiles(layout_.chunks()[chunk]);
}

void Updater::prepare(plan::Index chunk, bool early) {
  const auto& it = layout_.chunks()[chunk];
  if (inside(chunk)) return subspace(chunk).prepare(it, groups(chunk, early));
  if (rows_ == nullptr || it.block != rows_->block()) return;
  if (!rows_->dense()) std::memset(grad(chunk, early), 0, grad_bytes(rule_, it));
  rows_->patch(it, grad(chunk, early));
}

void Updater::run_first(plan::Index chunk, std::size_t tile, bool early) {
  subspace(chunk).run_first(layout_.chunks()[chunk], groups(chunk, early), early ? early_step_ : step_, tile);
}

void Updater::run(plan::Index chunk, std::size_t tile, bool early) {
  const auto& step = early ? early_step_ : step_;
  if (inside(chunk)) return subspace(chunk).run(layout_.chunks()[chunk], groups(chunk, early), step, tile);
  update_tile(layout_, rule_, chunk, groups(chunk, early), step, tile);
}

void Updater::finish(plan::Index chunk, bool early) {
  if (inside(chunk)) subspace(chunk).finish(layout_.chunks()[chunk], groups(chunk, early));
}

bool Updater::fits(plan::Index chunk) const {
  return inside(chunk) && learned_.learned(tensor(chunk));
}

/// On the host, where the gradient's record is or its projectors leave for where that is.
void Updater::end_fit(plan::Index chunk) {
  const auto& task = schedule_.tasks[schedule_.fit_task[chunk]];
  learned_.end_fit(tensor(chunk), at(task.buffer) + task.buffer_offset);
}

}  // namespace spillway::execute
