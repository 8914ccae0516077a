#include "spillway/execute/gradients.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/execute/compute.h"

namespace spillway::execute {
namespace {

float* as_fp32(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

}  // namespace

Gradients::Gradients(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                     Arenas arenas, EmbeddingRows* rows, Subspaces& subspaces, Team& team, const OpenDevice& device)
    : schedule_(schedule),
      layout_(layout),
      type_(rule.type),
      arenas_(arenas),
      rows_(rows),
      subspaces_(subspaces),
      team_(team),
      device_(device) {
  place_tensors(rule);
  std::uint64_t most = 1;
  std::size_t tensors = 1;
  for (const auto& tensor : layout.tensors()) most = std::max(most, tensor.elements);
  for (const auto& block : layout.blocks()) tensors = std::max(tensors, block.tensors);
  tiles_.resize(ceil_div(most, kernels::kNormTile));
  seen_.resize(tensors);
  norms_.resize(layout.tensors().size() + layout.chunks().size() + 1);
}

void Gradients::place_tensors(const state::UpdateRule& rule) {
  places_.resize(layout_.tensors().size());
  for (const auto& block : layout_.blocks()) {
    Place at;
    for (auto c = block.first_chunk; c < block.first_chunk + block.learning_chunks; ++c) {
      const auto& chunk = layout_.chunks()[c];
      at.pair = at.grad + core_bytes(rule, chunk);
      for (const auto& span : layout_.spans(c)) {
        if (span.tensor_first > 0) continue;
        const auto inner = span.chunk_first;  // of a subspace 0
        places_[span.tensor] = {at.grad + inner * state::field_bytes(type_).grad, at.sum + inner, at.pair};
      }
      at.grad += grad_bytes(rule, chunk);
      at.sum += chunk.core;
    }
  }
}

void Gradients::begin(std::uint64_t micro_batches) {
  micro_batches_ = micro_batches;
  std::fill(norms_.begin(), norms_.end(), kernels::Norm{});
}

void Gradients::open(const plan::Visit& visit) {
  visit_ = &visit;
  std::fill(seen_.begin(), seen_.end(), std::uint8_t{0});
}

Gradients::Target Gradients::target(Bytes at, std::uint64_t sum_at, std::uint64_t elements) const {
  Target out{.elements = elements};
  out.grad = arenas_.at(schedule_.buffers[visit_->grad]) + at;
  if (visit_->grad_sum != plan::kNone && micro_batches_ > 1) {
    out.sum = as_fp32(arenas_.at(schedule_.buffers[visit_->grad_sum])) + sum_at;
  }
  return out;
}

Gradients::Target Gradients::target_of(std::size_t tensor) const {
  return target(places_[tensor].grad, places_[tensor].sum, layout_.tensors()[tensor].core());
}

/// S is complete: what an update needs beside it. A step whose gradients were not finite before any projectors could be
/// learned is one to be skipped.
void Gradients::finish_inside(std::size_t tensor, const Target& to, bool seen) {
  if (layout_.tensors()[tensor].subspace.rank == 0) return;
  auto& norm = norms_[tensor];
  if (seen && !subspaces_.fitted(tensor)) norm.sum = std::numeric_limits<double>::quiet_NaN();
  subspaces_.close(tensor, norm.sum, to.grad + (places_[tensor].pair - places_[tensor].grad));
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

/// Where the visits' own work is done: by the caller, or behind it in the device's queue.
template <class Work>
void Gradients::launch(Work work) {
  if (device_.queue != nullptr) {
    device_.queue->call(device_.stream, std::move(work));
  } else {
    work();
  }
}

void Gradients::add(const Target& to, const std::byte* values, bool first) {
  const auto bytes = state::field_bytes(type_).grad;
  auto* const sum = type_ == state::ComputeType::fp32 ? as_fp32(to.grad) : to.sum;
  tiled(to.elements, [&](std::uint64_t at, std::uint64_t n) {
    (first ? widen : execute::add)(type_, values + at * bytes, sum + at, n);
    return kernels::Norm{};
  });
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
  const auto to = target_of(tensor);
  // A tensor that is first seen in a later micro-batch starts its sum there.
  const bool first = seen == 0 || micro_batch == 0, last = micro_batch + 1 == micro_batches_;
  seen = last ? 2 : 1;
  launch([=, this] {
    const bool summed = micro_batches_ > 1;
    if (summed) add(to, values, first);
    if (last) norms_[tensor] = finish(to, summed ? nullptr : values);
  });
}

void Gradients::take_slice(const std::byte* values, std::uint64_t micro_batch) {
  const auto& block = layout_.blocks()[visit_->block];
  const auto chunk = block.first_chunk + visit_->slice;
  const auto& it = layout_.chunks()[chunk];
  const auto to = target(0, 0, it.used);
  const bool first = seen_[0] == 0 || micro_batch == 0, last = micro_batch + 1 == micro_batches_;
  seen_[0] = last ? 2 : 1;
  const bool tied = rows_ != nullptr && rows_->block() == visit_->block;
  launch([=, this, &it] {
    const bool summed = micro_batches_ > 1;
    if (summed) add(to, values, first);
    if (last) end_slice(to, summed ? nullptr : values, it, norms_[layout_.tensors().size() + chunk], tied);
  });
}

void Gradients::end_slice(const Target& to, const std::byte* values, const state::Chunk& it, kernels::Norm& norm,
                          bool tied) {
  norm = finish(to, values);
  if (!tied) return;
  // A tied table: the step's own rows wait for the embedding's part and are not rounded yet.
  if (values == nullptr && type_ != state::ComputeType::fp32) {
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
      const auto number = block.first_tensor + i;
      const auto& tensor = layout_.tensors()[number];
      if (!has_gradient(tensor.spec.learning) || (seen_[i] == 2 && tensor.subspace.rank == 0)) continue;
      const auto to = target_of(number);
      launch([=, this, seen = seen_[i]] {
        if (seen == 1) norms_[number] = finish(to, nullptr);
        if (seen == 0) std::memset(to.grad, 0, to.elements * state::field_bytes(type_).grad);
        finish_inside(number, to, seen != 0);
      });
    }
  }
  if (visit_ != nullptr && visit_->kind == plan::VisitKind::head_gradient && seen_[0] != 2) {
    throw Error(ErrorCode::internal, text("head slice ", visit_->slice, " ended without its gradient"));
  }
  visit_ = nullptr;
}

kernels::Norm Gradients::total() {
  if (device_.queue != nullptr) device_.device->synchronise();
  kernels::Norm out;
  for (const auto& norm : norms_) out.sum += norm.sum;
  return out;
}

}  // namespace spillway::execute
