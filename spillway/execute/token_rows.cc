#include "spillway/execute/token_rows.h"

#include <algorithm>
#include <numeric>

#include "spillway/base/error.h"

namespace spillway::execute {

TokenRows::TokenRows(const plan::Description& description, const state::Layout& layout, std::size_t block)
    : table_rows_(layout.blocks()[block].rows),
      virtual_ranks_(description.virtual_ranks),
      world_(description.world),
      most_tokens_(description.all_tokens()),
      most_(std::min(table_rows_, most_tokens_)) {
  const auto& table = layout.blocks()[block];
  for (std::size_t process = 0; process < world_.size; ++process) {
    for (auto c = table.first_chunk; c < table.first_chunk + table.chunks; ++c) {
      const auto& slice = layout.chunks()[c];
      if (world_.size > 1 && description.owner(layout, slice) < process) continue;
      first_id_.push_back(static_cast<std::int64_t>(slice.first / table.columns));
      break;
    }
    if (first_id_.size() == process) first_id_.push_back(static_cast<std::int64_t>(table_rows_));  // it has none
  }
  first_id_.push_back(static_cast<std::int64_t>(table_rows_));
  order_.reserve(most_tokens_);
  ids_.reserve(most_tokens_);
  rows_.reserve(most_);
  first_.reserve(most_ + 1);
  rank_ends_.reserve(std::min(virtual_ranks_, description.micro_batches));
}

void TokenRows::begin(std::span<const std::int64_t> ids, std::span<const std::uint64_t> counts) {
  if (ids.size() > most_tokens_) {
    throw Error(ErrorCode::bad_input, text("a step of ", ids.size(), " tokens, but the plan holds ", most_tokens_));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= table_rows_) {
      throw Error(ErrorCode::bad_input, text("token ", i, " has id ", ids[i], ", and the embedding has ", table_rows_,
                                             " rows; the tokenizer does not belong to this model"));
    }
  }
  ids_.assign(ids.begin(), ids.end());
  const plan::VirtualRanks ranks(virtual_ranks_, std::max<std::uint64_t>(1, counts.size()));
  list_ranks(counts, ranks);
  sort_tokens();
  list_parts(ranks);
  own_first_ = first_row_of(world_.rank);
  own_end_ = first_row_of(world_.rank + 1);
}

void TokenRows::list_ranks(std::span<const std::uint64_t> counts, const plan::VirtualRanks& ranks) {
  rank_ends_.clear();
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (ranks.begins(i)) rank_ends_.push_back(end);
    end += counts[i];
    rank_ends_.back() = end;
  }
}

void TokenRows::sort_tokens() {
  order_.resize(ids_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return ids_[a] != ids_[b] ? ids_[a] < ids_[b] : a < b; });
  rows_.clear();
  first_.clear();
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    if (i == 0 || ids_[order_[i]] != rows_.back()) {
      rows_.push_back(ids_[order_[i]]);
      first_.push_back(i);
    }
  }
  first_.push_back(static_cast<std::uint32_t>(order_.size()));
}

std::uint64_t TokenRows::first_token_of(std::uint64_t rank) const {
  return rank == 0 || rank_ends_.empty() ? 0 : rank_ends_[rank - 1];
}

void TokenRows::list_parts(const plan::VirtualRanks& ranks) {
  first_token_ = 0;
  end_token_ = ids_.size();
  parts_.clear();
  machines_.clear();
  if (world_.size == 1) return;
  const auto own = ranks.restrict_to(world_.rank, world_.size);
  first_token_ = first_token_of(own.first());
  end_token_ = first_token_of(own.end());
  const auto here = world_.machine_of(world_.rank) * world_.local;
  for (auto process = here; process < here + world_.local; ++process) {
    list_parts(ranks.restrict_to(process, world_.size), process, parts_);
  }
  for (std::size_t machine = 0; machine < world_.machines(); ++machine) {
    list_parts(ranks.restrict_to(machine, world_.machines()), machine, machines_);
  }
}

void TokenRows::list_parts(const plan::VirtualRanks& of, std::size_t maker, std::vector<Part>& parts) const {
  for (auto first = of.first(); first < of.end(); first += parts.back().of.size) {
    const auto subtree = plan::subtree_from(first, of.end());
    parts.push_back({subtree, maker, first_token_of(first), first_token_of(first + subtree.size)});
  }
}

std::size_t TokenRows::first_row_of(std::size_t process) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(rows_, first_id_[process]) - rows_.begin());
}

TokenRows::Tokens TokenRows::tokens_between(std::size_t row, std::uint64_t first, std::uint64_t end) const {
  const auto all = tokens_of(row);
  return {std::ranges::lower_bound(all, first), std::ranges::lower_bound(all, end)};
}

std::size_t TokenRows::count_parts(std::span<const Part> parts, std::size_t maker, std::size_t row) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      parts, [&](const Part& part) { return part.maker == maker && !tokens_of(row, part).empty(); }));
}

std::size_t TokenRows::count_rows(std::span<const Part> parts, std::size_t maker, std::size_t owner) const {
  std::size_t out = 0;
  for (auto row = first_row_of(owner); row < first_row_of(owner + 1); ++row) out += count_parts(parts, maker, row);
  return out;
}

}  // namespace spillway::execute
