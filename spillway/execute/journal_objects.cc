#include "spillway/execute/journal_objects.h"

#include <algorithm>
#include <limits>

#include "spillway/optim/step.h"
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

journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                  plan::Durability durability, const std::string& run, std::size_t paths) {
  return journal_spec(description, layout, state::Ownership(layout), durability, run, paths);
}

journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                  const state::Ownership& ownership, plan::Durability durability,
                                  const std::string& run, std::size_t paths) {
  const auto rule = description.rule();
  journal::JournalSpec out;
  out.run = run;
  out.paths = static_cast<std::uint32_t>(paths);
  out.rank = static_cast<std::uint32_t>(ownership.world().rank);
  out.world = static_cast<std::uint32_t>(ownership.world().size);
  out.update = optim::extension_bytes(*description.optimizer);
  out.durability = durability == plan::Durability::step ? journal::Durability::step : journal::Durability::checkpoint;
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
  if (table == nullptr || table->trainable_chunks == 0) return out;
  // There are as many parts as the whole table would need, since another run may have more tokens in a step.
  const auto parts = ceil_div(rows_of(description, *table, table->rows), plan::kSparsePart);
  for (Bytes part = 0; part < parts; ++part) {
    out.gradients.push_back({.pieces = pieces_of(plan::kSparsePart),
                             .first_chunk = static_cast<std::uint32_t>(table->first_chunk),
                             .chunks = static_cast<std::uint32_t>(table->chunks)});
  }
  return out;
}

journal::ObjectSizes object_sizes(const plan::Description& description, const state::Layout& layout,
                                  const journal::JournalSpec& spec) {
  const auto rule = description.rule();
  journal::ObjectSizes out;
  static_assert(journal::kWeightPart == 0 && journal::kStatePart == 1);
  for (const auto& chunk : layout.chunks()) {
    out.snapshots.push_back({weight_bytes(rule, chunk), state_bytes(rule, chunk)});
  }
  const auto first_sparse = GradientIds(description, layout).find_sparse(0);
  for (std::uint32_t gradient = 0; gradient < spec.gradients.size(); ++gradient) {
    if (gradient < first_sparse) {
      out.gradients.push_back({grad_bytes(rule, layout.chunks()[spec.gradients[gradient].first_chunk])});
    } else {
      out.gradients.push_back({plan::kSparsePart, true});
    }
  }
  return out;
}

}  // namespace spillway::execute
