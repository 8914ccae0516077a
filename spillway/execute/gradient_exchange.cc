#include "spillway/execute/gradient_exchange.h"

#include <algorithm>
#include <cstring>

#include "spillway/device/typed.h"
#include "spillway/execute/arithmetic.h"

namespace spillway::execute {
namespace {

std::span<std::byte> bytes_of(float* from, std::uint64_t elements) {
  return {reinterpret_cast<std::byte*>(from), elements * sizeof(float)};
}

}  // namespace

GradientExchange::GradientExchange(const plan::Schedule& schedule, const state::Layout& layout,
                                   const plan::Description& description, Arenas arenas, SparseEmbedding* rows,
                                   SquareSlots& slots, std::span<double> squares)
    : schedule_(schedule),
      layout_(layout),
      description_(description),
      world_(description.world),
      arenas_(arenas),
      rows_(rows),
      slots_(slots),
      squares_(squares),
      others_(rows != nullptr && rows->dense() ? layout.blocks()[rows->block()].chunks : 0) {}

void GradientExchange::begin(const plan::VirtualRanks& ranks) {
  ranks_ = ranks;
  parts_.clear();
  if (others_.empty()) return;
  const auto& table = layout_.blocks()[rows_->block()];
  for (std::size_t slice = 0; slice < others_.size(); ++slice) {
    const auto& chunk = layout_.chunks()[table.first_chunk + slice];
    if (description_.has(layout_, chunk)) list_other_rows(*rows_, chunk, table.columns, others_[slice], parts_);
  }
}

std::vector<GradientExchange::ChunkSums> GradientExchange::sums_of(const plan::Pass& pass) const {
  const auto chunks = plan::chunks_of(layout_, pass);
  const auto rule = description_.rule();
  const auto& buffer = schedule_.buffers[pass.grad_sum];
  auto* own = reinterpret_cast<float*>(arenas_.at(buffer));
  auto* received = reinterpret_cast<float*>(at(pass.received));
  auto* grad = at(pass.grad);
  const auto stride = buffer.bytes / sizeof(float) / description_.gradient_sums();
  unsigned others = 0;
  for (std::size_t process = 0; process < world_.size; ++process) {
    others += process == world_.rank ? 0 : ranks_of(process).partials();
  }
  std::vector<ChunkSums> out;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    if (!state::is_trainable(chunk.training)) continue;
    out.push_back({.chunk = c, .own = own, .stride = stride});
    own += chunk.gradient_elements;
    if (!description_.has(layout_, chunk)) continue;
    out.back().received = received;
    out.back().grad = grad;
    received += others * chunk.gradient_elements;
    grad += grad_bytes(rule, chunk);
  }
  return out;
}

std::vector<network::Message> GradientExchange::messages(const plan::Pass& pass) {
  if (pass.kind == plan::PassKind::embedding_backward) return row_messages();
  std::vector<network::Message> out;
  for (const auto& sums : sums_of(pass)) {
    const auto& chunk = layout_.chunks()[sums.chunk];
    const auto elements = chunk.gradient_elements;
    if (sums.received == nullptr) {
      for (unsigned part = 0; part < ranks_of(world_.rank).partials(); ++part) {
        out.push_back({.peer = description_.owner(layout_, chunk),
                       .sends = true,
                       .bytes = bytes_of(sums.own + part * sums.stride, elements)});
      }
      continue;
    }
    auto* to = sums.received;
    for (std::size_t process = 0; process < world_.size; ++process) {
      if (process == world_.rank) continue;
      for (unsigned part = 0; part < ranks_of(process).partials(); ++part, to += elements) {
        out.push_back({.peer = process, .sends = false, .bytes = bytes_of(to, elements)});
      }
    }
  }
  return out;
}

void GradientExchange::arrived(const plan::Pass& pass) {
  if (pass.kind == plan::PassKind::embedding_backward) return rows_arrived();
  for (const auto& sums : sums_of(pass)) {
    if (sums.received != nullptr) finish(sums);
  }
}

void GradientExchange::finish(const ChunkSums& sums) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  std::vector<Partial> parts;
  auto* received = sums.received;
  for (std::size_t process = 0; process < world_.size; ++process) {
    const auto ranks = ranks_of(process);
    auto* own = sums.own;
    for (auto first = ranks.first(); first < ranks.end(); first += parts.back().of.size) {
      const bool mine = process == world_.rank;
      parts.push_back({plan::subtree_from(first, ranks.end()), mine ? own : received});
      (mine ? own : received) += mine ? sums.stride : chunk.gradient_elements;
    }
  }
  const auto* whole = add_partials(parts, chunk.gradient_elements);
  const bool layer = layout_.blocks()[chunk.block].role == state::BlockRole::layer;
  layer ? round_layer(sums, whole) : round_slice(sums, whole);
}

/// Tensor by tensor, whose tiles begin with them.
void GradientExchange::round_layer(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const auto type = rule_of(description_.rule(), chunk).type;
  for (const auto& span : layout_.spans(sums.chunk)) {
    const auto pieces = slots_.pieces(span.tensor);
    const auto piece = std::ranges::find(pieces, sums.chunk, &SquareSlots::Piece::chunk);
    const auto slot = slots_.piece(span.tensor, static_cast<std::size_t>(piece - pieces.begin()));
    round(type, whole + span.chunk_first, sums.grad + span.chunk_first * state::field_bytes(type).grad, span.elements,
          squares_.data() + slot);
  }
}

void GradientExchange::round_slice(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const bool tied = rows_ != nullptr && rows_->dense() && rows_->block() == chunk.block;
  round(description_.type, whole, sums.grad, chunk.used, tied ? nullptr : squares_.data() + slots_.slice(sums.chunk));
  if (!tied) return;
  const auto columns = layout_.blocks()[chunk.block].columns;
  const auto kept = rows_->in_chunk(chunk);
  for (std::size_t i = 0; i < kept.rows.size(); ++i) {
    const auto* from = whole + static_cast<std::uint64_t>(kept.rows[i] - kept.base) * columns;
    std::memcpy(rows_->sum_of(kept.first + i), from, columns * sizeof(float));
  }
  take_squares(sums);
}

/// Of the rows of a tied table that wait for no token's part.
void GradientExchange::take_squares(const ChunkSums& sums) {
  const auto& others = others_[sums.chunk - layout_.blocks()[rows_->block()].first_chunk];
  auto* to = squares_.data() + slots_.other_rows(sums.chunk, others);
  const auto type = element_of(description_.type);
  for (std::size_t i = 0; i < others.count; ++i) {
    const auto& part = parts_[others.first + i];
    auto* const values = sums.grad + part.first * device::bytes_of(type);
    to[i] = device::copy_norm(type, values, values, part.count).sum;  // onto itself: only the norm is wanted
  }
}

void GradientExchange::round(state::ComputeType type, const float* from, std::byte* to, std::uint64_t elements,
                             double* squares) const {
  const auto element = element_of(type);
  for (std::uint64_t tile = 0, first = 0; first < elements; ++tile, first += device::kSquaresTile) {
    const auto count = std::min(device::kSquaresTile, elements - first);
    const auto norm = device::round_norm(element, from + first, to + first * device::bytes_of(element), count);
    if (squares != nullptr) squares[tile] = norm.sum;
  }
}

// ---- rows of the embedding

std::vector<network::Message> GradientExchange::row_messages() {
  std::vector<network::Message> out;
  const auto columns = layout_.blocks()[rows_->block()].columns;
  auto* const sent = reinterpret_cast<float*>(at(schedule_.sent_rows));
  auto* received = reinterpret_cast<float*>(at(schedule_.received_rows));
  for (std::size_t process = 0; process < world_.size; ++process) {
    if (process == world_.rank) continue;
    if (const auto rows = rows_->sent(world_.rank, process); rows.count > 0) {
      out.push_back(
          {.peer = process, .sends = true, .bytes = bytes_of(sent + rows.first * columns, rows.count * columns)});
    }
    if (const auto rows = rows_->sent(process, world_.rank); rows.count > 0) {
      out.push_back({.peer = process, .sends = false, .bytes = bytes_of(received, rows.count * columns)});
      received += rows.count * columns;
    }
  }
  return out;
}

void GradientExchange::rows_arrived() {
  const auto columns = layout_.blocks()[rows_->block()].columns;
  const auto* received = reinterpret_cast<const float*>(at(schedule_.received_rows));
  std::vector<const float*> parts;
  for (std::size_t process = 0; process < world_.size; ++process) {
    const auto rows = rows_->sent(process, world_.rank);
    if (process == world_.rank) {
      parts.push_back(reinterpret_cast<const float*>(at(schedule_.sent_rows)) + rows.first * columns);
    } else {
      parts.push_back(received);
      received += rows.count * columns;
    }
  }
  rows_->round_parts(parts);
}

}  // namespace spillway::execute
