#include "spillway/execute/updater.h"

#include <algorithm>
#include <cstring>

namespace spillway::execute {
namespace {

void apply(state::ComputeType type, const FieldPointers& where, std::uint64_t elements, std::uint64_t first,
           std::uint64_t count, const kernels::UpdateStep& step) {
  const bool split = type == state::ComputeType::bf16;
  const Bytes item = split ? 2 : 4;
  std::byte* const moments = where.state + (split ? elements * 2 : 0);
  const kernels::UpdateSpan span{.weight = where.weight + first * item,
                                 .rest = split ? where.state + first * 2 : nullptr,
                                 .moments = {moments + first * 4, moments + (elements + first) * 4},
                                 .scales = {},
                                 .grad = where.grad + first * item,
                                 .n = count,
                                 .index = 0};
  kernels::update({.weights = split ? kernels::Weights::split : kernels::Weights::fp32}, span, step);
}

}  // namespace

std::size_t update_tiles(const state::Chunk& chunk) noexcept {
  return ceil_div(chunk.used, kUpdateTile);
}

void update_tile(const state::Layout& layout, state::ComputeType type, std::size_t chunk, const FieldPointers& fields,
                 const kernels::UpdateStep& step, std::size_t tile) {
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
    apply(type, fields, it.elements, first, last - first, decays ? step : plain);
  }
}

Updater::Updater(const plan::Schedule& schedule, const state::Layout& layout, state::ComputeType type, std::byte* arena,
                 const EmbeddingRows* rows)
    : schedule_(schedule), layout_(layout), type_(type), arena_(arena), rows_(rows), undo_(schedule, arena) {}

std::byte* Updater::at(plan::Index buffer) const {
  return arena_ + schedule_.buffers[buffer].offset;
}

FieldPointers Updater::fields(plan::Index chunk) const {
  const auto& early = schedule_.early[chunk];
  return {at(schedule_.update_weight[chunk]) + schedule_.weight_at[chunk], at(schedule_.update_state[chunk]),
          early_ ? at(early.grad) + early.grad_at : at(schedule_.update_grad[chunk]) + schedule_.grad_at[chunk]};
}

std::size_t Updater::tiles(plan::Index chunk) const {
  return update_tiles(layout_.chunks()[chunk]);
}

void Updater::prepare(plan::Index chunk, bool early) {
  early_ = early;
  const auto& it = layout_.chunks()[chunk];
  if (rows_ == nullptr || it.block != rows_->block()) return;
  const auto grad = fields(chunk).grad;
  if (!rows_->dense()) std::memset(grad, 0, it.elements * state::field_bytes(type_).grad);
  rows_->patch(it, grad);
}

void Updater::run(plan::Index chunk, std::size_t tile) {
  update_tile(layout_, type_, chunk, fields(chunk), early_ ? early_step_ : step_, tile);
}

}  // namespace spillway::execute
