// Lists of the objects of a journal: chunks, and gradients by number.
#include <algorithm>
#include <limits>

#include "spillway/execute/journal_objects.h"
#include "spillway/plan/schedule.h"
#include "spillway/plan/storage_need.h"
#include "spillway/storage/path.h"

namespace spillway::execute {
namespace {

constexpr std::uint32_t kNoGradient = std::numeric_limits<std::uint32_t>::max();

std::uint32_t pieces_of(Bytes bytes) {
  return static_cast<std::uint32_t>(ceil_div(bytes, storage::kExtentAlignment));
}

Bytes rows_of(const plan::Description& description, const state::Block& table, std::uint64_t rows) {
  return plan::sparse_bytes(rows, table.columns, state::field_bytes(description.weight_dtype).grad);
}

}  // namespace

GradientIds::GradientIds(const plan::Description& description, const state::Layout& layout) {
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    of_chunk_.push_back(plan::has_dense_grad(description, layout, c) ? first_sparse_++ : kNoGradient);
  }
  if (const auto* table = layout.embedding(); table != nullptr && table->trainable_chunks > 0) {
    sparse_parts_ =
        ceil_div(rows_of(description, *table, std::min(table->rows, description.all_tokens())), plan::kSparsePart);
  }
}

void list_objects(const plan::Description& description, const state::Layout& layout, const state::Ownership& ownership,
                  journal::JournalSpec& out) {
  const auto rule = description.rule();
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    const auto& chunk = layout.chunks()[c];
    out.chunks.push_back({.pieces = pieces_of(weight_bytes(rule, chunk)) + pieces_of(state_bytes(rule, chunk)),
                          .period = plan::kSnapshotPeriod,
                          .constant = !is_trainable(chunk.training),
                          .elsewhere = !ownership.has(c)});
    if (!plan::has_dense_grad(description, layout, c)) continue;
    out.gradients.push_back({.pieces = pieces_of(grad_bytes(rule, chunk)), .first_chunk = c, .chunks = 1});
  }
  const auto* table = layout.embedding();
  if (table == nullptr || table->trainable_chunks == 0) return;
  // There are as many parts as the whole table would need, since another run may have more tokens in a step.
  const auto parts = ceil_div(rows_of(description, *table, table->rows), plan::kSparsePart);
  for (Bytes part = 0; part < parts; ++part) {
    out.gradients.push_back({.pieces = pieces_of(plan::kSparsePart),
                             .first_chunk = static_cast<std::uint32_t>(table->first_chunk),
                             .chunks = static_cast<std::uint32_t>(table->chunks)});
  }
}

}  // namespace spillway::execute
