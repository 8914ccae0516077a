#include "spillway/execute/updater.h"

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
      undo_(schedule, arena) {
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

void Updater::run(plan::Index chunk, std::size_t part, std::size_t tile, bool early) {
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
