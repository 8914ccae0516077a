// Sums of a slice of a head that have arrived, rounded into its gradient.
#include "spillway/execute/gradient_exchange.h"

namespace spillway::execute {

void GradientExchange::round_slice(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const bool tied = rows_ != nullptr && rows_->dense() && rows_->block() == chunk.block;
  auto* const squares = tied ? nullptr : squares_.data() + slots_.slice(sums.chunk);
  const auto values = round(description_.weight_dtype, whole, sums.grad, chunk.used, squares);
  if (digests_ != nullptr) digests_->add_gradient(layout_.blocks()[chunk.block].name, sums.chunk, values, false);
  if (!tied) return;
  const auto& table = layout_.blocks()[chunk.block];
  rows_->take_sums(chunk, whole);
  const auto& others = others_[sums.chunk - table.first_chunk];  // rows that wait for no token's part
  device::compute(device::Squares{.type = description_.weight_dtype,
                                  .values = sums.grad,
                                  .parts = parts_.data() + others.first,
                                  .count = others.count,
                                  .squares = squares_.data() + slots_.other_rows(sums.chunk, others)},
                  {});
}

}  // namespace spillway::execute
