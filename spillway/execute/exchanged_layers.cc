// Sums of layers that have arrived, rounded into gradients.
#include <algorithm>

#include "spillway/execute/gradient_exchange.h"

namespace spillway::execute {

void GradientExchange::finish(const ChunkSums& sums) {
  const auto* sum = whole(sums.gradient);
  const auto& chunk = layout_.chunks()[sums.chunk];
  if (chunk.reduced.any()) return finish_reduced(sums, sum);
  const bool slice = traits(layout_.blocks()[chunk.block].role).is_table;
  slice ? round_slice(sums, sum) : round_layer(sums, sum);
}

void GradientExchange::finish_reduced(const ChunkSums& sums, const float* sum) {
  const auto tensor = tensor_of(sums.chunk);
  const auto elements = layout_.tensors()[tensor].gradient_elements();
  const auto squares = squares_.subspan(slots_.tensor(tensor), device::square_tiles(elements));
  add_digest(tensor, sums.chunk, round(description_.weight_dtype, sum, sums.grad, elements, squares.data()));
  const auto behind = gradient_value_bytes(description_.rule(), layout_.chunks()[sums.chunk]);
  reduced_.close(tensor, squares, whole(sums.samples), sums.grad + behind);
}

/// Tensor by tensor, whose tiles begin with them.
void GradientExchange::round_layer(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const auto type = rule_of(description_.rule(), chunk).type;
  for (const auto& span : layout_.spans(sums.chunk)) {
    const auto pieces = slots_.pieces(span.tensor);
    const auto piece = std::ranges::find(pieces, sums.chunk, &SquareSlots::Piece::chunk);
    const auto slot = slots_.piece(span.tensor, static_cast<std::size_t>(piece - pieces.begin()));
    auto* const to = sums.grad + span.chunk_first * state::field_bytes(type).grad;
    add_digest(span.tensor, sums.chunk,
               round(type, whole + span.chunk_first, to, span.elements, squares_.data() + slot));
  }
}

std::span<const std::byte> GradientExchange::round(state::ComputeType type, const float* from, std::byte* to,
                                                   std::uint64_t elements, double* squares) const {
  device::compute(device::Round{.type = type, .sums = from, .out = to, .n = elements, .squares = squares}, {});
  return {to, elements * state::field_bytes(type).grad};
}

void GradientExchange::add_digest(std::size_t tensor, std::size_t chunk, std::span<const std::byte> values) const {
  if (digests_ != nullptr) digests_->add_gradient(layout_.tensors()[tensor].spec.name, chunk, values, false);
}

}  // namespace spillway::execute
