#include "spillway/execute/gradients.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/execute/compute.h"

namespace spillway::execute {
namespace {

float* as_fp32(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

}  // namespace

Gradients::Gradients(const plan::Schedule& schedule, const state::Layout& layout, state::ComputeType type,
                     std::byte* arena, EmbeddingRows* rows, Team& team)
    : schedule_(schedule), layout_(layout), type_(type), arena_(arena), rows_(rows), team_(team) {
  std::uint64_t most = 1;
  std::size_t tensors = 1;
  for (const auto& tensor : layout.tensors()) most = std::max(most, tensor.elements);
  for (const auto& block : layout.blocks()) tensors = std::max(tensors, block.tensors);
  tiles_.resize(ceil_div(most, kernels::kNormTile));
  seen_.resize(tensors);
  norms_.resize(layout.tensors().size() + layout.chunks().size() + 1);
}

void Gradients::begin(std::uint64_t micro_batches) {
  micro_batches_ = micro_batches;
  std::fill(norms_.begin(), norms_.end(), kernels::Norm{});
}

void Gradients::open(const plan::Visit& visit) {
  visit_ = &visit;
  std::fill(seen_.begin(), seen_.end(), std::uint8_t{0});
}

Gradients::Target Gradients::target(std::uint64_t first, std::uint64_t elements) const {
  Target out{.elements = elements};
  out.grad = arena_ + schedule_.buffers[visit_->grad].offset + first * state::field_bytes(type_).grad;
  if (visit_->grad_sum != plan::kNone && micro_batches_ > 1) {
    out.sum = as_fp32(arena_ + schedule_.buffers[visit_->grad_sum].offset) + first;
  }
  return out;
}

kernels::Norm Gradients::tiled(std::uint64_t elements, auto body) {
  const auto tiles = ceil_div(elements, kernels::kNormTile);
  team_.run(tiles, [&](std::size_t tile) {
    const auto first = tile * kernels::kNormTile;
    tiles_[tile] = body(first, std::min<std::uint64_t>(kernels::kNormTile, elements - first));
  });
  kernels::Norm total;
  for (std::size_t tile = 0; tile < tiles; ++tile) total.sum += tiles_[tile].sum;
  return total;
}

bool Gradients::add(const Target& to, const std::byte* values, std::uint64_t micro_batch) {
  if (micro_batches_ == 1) return false;
  const bool first = micro_batch == 0;
  const auto bytes = state::field_bytes(type_).grad;
  auto* const sum = type_ == state::ComputeType::fp32 ? as_fp32(to.grad) : to.sum;
  tiled(to.elements, [&](std::uint64_t at, std::uint64_t n) {
    (first ? widen : execute::add)(type_, values + at * bytes, sum + at, n);
    return kernels::Norm{};
  });
  return true;
}

kernels::Norm Gradients::finish(const Target& to, const std::byte* values) {
  const auto bytes = state::field_bytes(type_).grad;
  const bool rounds = values == nullptr && type_ != state::ComputeType::fp32;
  const auto* const from = values != nullptr ? values : to.grad;
  return tiled(to.elements, [&](std::uint64_t at, std::uint64_t n) {
    return rounds ? round_norm(type_, to.sum + at, to.grad + at * bytes, n)
                  : copy_norm(type_, from + at * bytes, to.grad + at * bytes, n);
  });
}

void Gradients::take(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  const auto& it = layout_.tensors().at(tensor);
  if (visit_ == nullptr || visit_->kind != plan::VisitKind::backward || it.block != visit_->block) {
    throw Error(ErrorCode::internal, text("a gradient of ", it.spec.name, " outside its block's backward visit"));
  }
  if (!has_gradient(it.spec.learning)) {
    throw Error(ErrorCode::bad_input, text("a gradient of ", it.spec.name, ", which is frozen"));
  }
  auto& seen = seen_[tensor - layout_.blocks()[it.block].first_tensor];
  const auto to = target(it.first, it.elements);
  // A tensor that is first seen in a later micro-batch starts its sum there.
  const bool summed = add(to, values, seen == 0 ? 0 : micro_batch);
  seen = 1;
  if (micro_batch + 1 < micro_batches_) return;
  norms_[tensor] = finish(to, summed ? nullptr : values);
  seen = 2;
}

void Gradients::take_slice(const std::byte* values, std::uint64_t micro_batch) {
  const auto& block = layout_.blocks()[visit_->block];
  const auto chunk = block.first_chunk + visit_->slice;
  const auto& it = layout_.chunks()[chunk];
  const auto to = target(0, it.used);
  const bool summed = add(to, values, seen_[0] == 0 ? 0 : micro_batch);
  seen_[0] = 1;
  if (micro_batch + 1 < micro_batches_) return;
  auto& norm = norms_[layout_.tensors().size() + chunk];
  norm = finish(to, summed ? nullptr : values);
  seen_[0] = 2;
  if (rows_ == nullptr || rows_->block() != visit_->block) return;
  // A tied table: the step's own rows wait for the embedding's part and are not rounded yet.
  if (summed && type_ != state::ComputeType::fp32) {
    rows_->keep(it, to.sum);
  } else {
    rows_->keep(it, to.grad);
  }
  norm = rows_->norm_of_others(it, to.grad);
}

void Gradients::take_rows(const std::byte* values) {
  norms_.back() = rows_->round(values, team_);
}

void Gradients::close() {
  if (visit_ != nullptr && visit_->kind == plan::VisitKind::backward) {
    const auto& block = layout_.blocks()[visit_->block];
    for (std::size_t i = 0; i < block.tensors; ++i) {
      if (seen_[i] == 2) continue;
      const auto& tensor = layout_.tensors()[block.first_tensor + i];
      if (!has_gradient(tensor.spec.learning)) continue;
      const auto to = target(tensor.first, tensor.elements);
      if (seen_[i] == 1) {
        norms_[block.first_tensor + i] = finish(to, nullptr);
      } else {
        std::memset(to.grad, 0, to.elements * state::field_bytes(type_).grad);
      }
    }
  }
  if (visit_ != nullptr && visit_->kind == plan::VisitKind::head_gradient && seen_[0] != 2) {
    throw Error(ErrorCode::internal, text("head slice ", visit_->slice, " ended without its gradient"));
  }
  visit_ = nullptr;
}

kernels::Norm Gradients::total() const {
  kernels::Norm out;
  for (const auto& norm : norms_) out.sum += norm.sum;
  return out;
}

}  // namespace spillway::execute
