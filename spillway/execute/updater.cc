#include "spillway/execute/updater.h"

#include <algorithm>
#include <cstring>

namespace spillway::execute {
std::size_t update_tiles(const state::Chunk& chunk) noexcept {
  return ceil_div(chunk.used, kUpdateTile);
}

void update_tile(const state::Layout& layout, const state::UpdateRule& rule, std::size_t chunk,
                 const state::GroupPointers& groups, const kernels::UpdateStep& step, std::size_t tile) {
  const auto& it = layout.chunks()[chunk];
  const auto begin = tile * kUpdateTile;
  const auto end = std::min(begin + kUpdateTile, it.used);
  auto plain = step;
  plain.weight_decay = 0;
  for (const auto& span : layout.spans(chunk)) {
    const auto first = std::max(begin, span.chunk_first);
    const auto last = std::min(end, span.chunk_first + span.elements);
    if (first >= last) continue;
    const bool decays = layout.tensors()[span.tensor].spec.decay;
    const auto located = locate(rule, it, span, groups, first, last - first);
    kernels::update(located.form, located.span, decays ? step : plain);
  }
}

Updater::Updater(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                 std::byte* arena, const EmbeddingRows* rows)
    : schedule_(schedule), layout_(layout), rule_(rule), arena_(arena), rows_(rows), undo_(schedule, arena) {}

std::byte* Updater::at(plan::Index buffer) const {
  return arena_ + schedule_.buffers[buffer].offset;
}

std::byte* Updater::grad(plan::Index chunk, bool early) const {
  const auto& it = schedule_.early[chunk];
  return early ? at(it.grad) + it.grad_at : at(schedule_.update_grad[chunk]) + schedule_.grad_at[chunk];
}

state::GroupPointers Updater::groups(plan::Index chunk, bool early) const {
  return {at(schedule_.update_weight[chunk]) + schedule_.weight_at[chunk], at(schedule_.update_state[chunk]),
          grad(chunk, early)};
}

std::size_t Updater::tiles(plan::Index chunk) const {
  return update_tiles(layout_.chunks()[chunk]);
}

void Updater::prepare(plan::Index chunk, bool early) {
  const auto& it = layout_.chunks()[chunk];
  if (rows_ == nullptr || it.block != rows_->block()) return;
  if (!rows_->dense()) std::memset(grad(chunk, early), 0, grad_bytes(rule_, it));
  rows_->patch(it, grad(chunk, early));
}

void Updater::run(plan::Index chunk, std::size_t tile, bool early) {
  update_tile(layout_, rule_, chunk, groups(chunk, early), early ? early_step_ : step_, tile);
}

}  // namespace spillway::execute
