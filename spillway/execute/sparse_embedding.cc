#include "spillway/execute/sparse_embedding.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/device/typed.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/plan/routes.h"
#include "spillway/sink/arithmetic.h"

namespace spillway::execute {
namespace {

constexpr std::size_t kRowsPerTile = 64;

/// Adds up one row's tokens as a tree of virtual ranks.
class RankTree {
 public:
  /// `ends`: as SparseEmbedding has them.
  RankTree(device::Element type, const std::byte* gradient, std::uint64_t columns, std::span<const std::uint64_t> ends)
      : type_(type),
        gradient_(gradient),
        columns_(columns),
        ends_(ends),
        sums_((static_cast<std::size_t>(std::bit_width(ends.size())) + 1) * columns) {}

  /// Takes rising tokens, at least one.
  const float* sum(std::span<const std::uint32_t> tokens) {
    sum(tokens, 0, ends_.size(), sums_.data());
    return sums_.data();
  }
  /// The same of tokens of one subtree, to `out`. `offset`: the token that the gradient begins with.
  void sum(std::span<const std::uint32_t> tokens, const plan::Subtree& of, std::uint64_t offset, float* out) {
    offset_ = offset;
    sum(tokens, of.first, of.size, sums_.data());
    std::memcpy(out, sums_.data(), columns_ * sizeof(float));
  }

 private:
  /// Adds ranks [first, first + count), to `out`; what lies behind it is overwritten.
  void sum(std::span<const std::uint32_t> tokens, std::size_t first, std::size_t count, float* out) {
    if (count == 1) return sum_rank(tokens, out);
    const auto half = std::bit_ceil(count) / 2;
    const auto cut = std::ranges::lower_bound(tokens, ends_[first + half - 1]) - tokens.begin();
    const auto left = tokens.first(static_cast<std::size_t>(cut)), right = tokens.subspan(left.size());
    if (left.empty()) return sum(right, first + half, count - half, out);
    sum(left, first, half, out);
    if (right.empty()) return;
    sum(right, first + half, count - half, out + columns_);
    device::add(device::Element::fp32, reinterpret_cast<const std::byte*>(out + columns_), out, columns_);
  }

  void sum_rank(std::span<const std::uint32_t> tokens, float* out) const {
    std::memset(out, 0, columns_ * sizeof(float));
    for (const auto token : tokens) {
      device::add(type_, gradient_ + (token - offset_) * columns_ * traits(type_).bytes, out, columns_);
    }
  }

  std::uint64_t offset_ = 0;
  const device::Element type_;
  const std::byte* const gradient_;
  const std::uint64_t columns_;
  const std::span<const std::uint64_t> ends_;
  std::vector<float> sums_;
};

}  // namespace

SparseEmbedding::SparseEmbedding(const plan::Description& description, const state::Layout& layout, std::size_t block)
    : block_(block),
      table_(layout.blocks()[block]),
      table_rows_(layout.blocks()[block].rows),
      columns_(layout.blocks()[block].columns),
      type_(description.weight_dtype),
      computes_(description.computes()),
      dense_(plan::has_dense_grad(description, layout, static_cast<plan::Index>(table_.first_chunk))),
      virtual_ranks_(description.virtual_ranks),
      world_(description.world),
      index_bytes_(description.row_index_bytes()),
      tokens_(description.all_tokens()) {
  for (std::size_t process = 0; process < world_.size; ++process) {
    for (auto c = table_.first_chunk; c < table_.first_chunk + table_.chunks; ++c) {
      const auto& slice = layout.chunks()[c];
      if (world_.size > 1 && description.owner(layout, slice) < process) continue;
      first_id_.push_back(static_cast<std::int64_t>(slice.first / columns_));
      break;
    }
    if (first_id_.size() == process) first_id_.push_back(static_cast<std::int64_t>(table_rows_));  // it has none
  }
  first_id_.push_back(static_cast<std::int64_t>(table_rows_));
  const auto most = std::min(table_rows_, tokens_);
  order_.reserve(tokens_);
  ids_.reserve(tokens_);
  rows_.reserve(most);
  first_.reserve(most + 1);
  packed_places_.reserve(most);
  norms_.resize(most);
  rank_ends_.reserve(std::min(virtual_ranks_, description.micro_batches));
}

void SparseEmbedding::place(float* sums, std::byte* rounded) noexcept {
  sums_ = sums;
  rounded_ = rounded;
}

void SparseEmbedding::begin(std::span<const std::int64_t> ids, std::span<const std::uint64_t> counts) {
  if (ids.size() > tokens_) {
    throw Error(ErrorCode::bad_input, text("a step of ", ids.size(), " tokens, but the plan holds ", tokens_));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= table_rows_) {
      throw Error(ErrorCode::bad_input, text("token ", i, " has id ", ids[i], ", and the embedding has ", table_rows_,
                                             " rows; the tokenizer does not belong to this model"));
    }
  }
  rank_ends_.clear();
  const plan::VirtualRanks ranks(virtual_ranks_, std::max<std::uint64_t>(1, counts.size()));
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (ranks.begins(i)) rank_ends_.push_back(end);
    end += counts[i];
    rank_ends_.back() = end;
  }
  ids_.assign(ids.begin(), ids.end());
  order_.resize(ids.size());
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
  list_parts(ranks);
  own_first_ = first_row_of(world_.rank);
  own_end_ = first_row_of(world_.rank + 1);
  number_rows();
}

/// Rows without a token of this process have no place.
void SparseEmbedding::number_rows() {
  packed_places_.resize(rows_.size());
  packed_ = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    packed_places_[row] = static_cast<std::uint32_t>(packed_);
    if (!list_own_tokens(row).empty()) ++packed_;
  }
}

std::uint64_t SparseEmbedding::first_token_of(std::uint64_t rank) const {
  return rank == 0 || rank_ends_.empty() ? 0 : rank_ends_[rank - 1];
}

void SparseEmbedding::list_parts(const plan::VirtualRanks& ranks) {
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

void SparseEmbedding::list_parts(const plan::VirtualRanks& of, std::size_t maker, std::vector<Part>& parts) const {
  for (auto first = of.first(); first < of.end(); first += parts.back().of.size) {
    const auto subtree = plan::subtree_from(first, of.end());
    parts.push_back({subtree, maker, first_token_of(first), first_token_of(first + subtree.size)});
  }
}

/// Number of the first of the step's rows that the process owns, or that one behind it does.
std::size_t SparseEmbedding::first_row_of(std::size_t process) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(rows_, first_id_[process]) - rows_.begin());
}

std::span<const std::uint32_t> SparseEmbedding::tokens_between(std::size_t row, std::uint64_t first,
                                                               std::uint64_t end) const {
  const auto all = tokens_of(row);
  return {std::ranges::lower_bound(all, first), std::ranges::lower_bound(all, end)};
}

/// Subtrees of a process or machine that have tokens of a row.
std::size_t SparseEmbedding::parts_of(const std::vector<Part>& parts, std::size_t maker, std::size_t row) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      parts, [&](const Part& part) { return part.maker == maker && !tokens_of(row, part).empty(); }));
}

SparseEmbedding::Kept SparseEmbedding::in_chunk(const state::Chunk& chunk) const {
  const auto base = static_cast<std::int64_t>(chunk.first / columns_);
  const auto begin = std::ranges::lower_bound(rows_, base);
  const auto end = std::ranges::lower_bound(rows_, base + static_cast<std::int64_t>(chunk.used / columns_));
  return {{begin, end}, static_cast<std::size_t>(begin - rows_.begin()), base};
}

void SparseEmbedding::convert_row(const std::byte* from, std::byte* to) const {
  if (computes_ == type_) return static_cast<void>(std::memcpy(to, from, row_bytes()));
  device::widen(type_, from, reinterpret_cast<float*>(to), columns_);
}

template <class Body>
void SparseEmbedding::each_row(const state::Chunk& chunk, const std::byte* weights, ThreadPool& thread_pool,
                               const Body& body) const {
  const auto kept = in_chunk(chunk);
  const auto bytes = columns_ * state::field_bytes(type_).weight;
  thread_pool.run(ceil_div(kept.rows.size(), kRowsPerTile), [&](std::size_t tile) {
    const auto end = std::min((tile + 1) * kRowsPerTile, kept.rows.size());
    for (auto row = tile * kRowsPerTile; row < end; ++row) {
      body(kept.first + row, weights + static_cast<std::uint64_t>(kept.rows[row] - kept.base) * bytes);
    }
  });
}

void SparseEmbedding::gather(const state::Chunk& chunk, const std::byte* weights, std::byte* output,
                             ThreadPool& thread_pool) const {
  each_row(chunk, weights, thread_pool, [&](std::size_t row, const std::byte* values) {
    for (const auto token : list_own_tokens(row)) convert_row(values, output + (token - first_token_) * row_bytes());
  });
}

void SparseEmbedding::pack(const state::Chunk& chunk, const std::byte* weights, std::byte* packed,
                           ThreadPool& thread_pool) const {
  auto* const index = reinterpret_cast<std::uint32_t*>(packed);
  each_row(chunk, weights, thread_pool, [&](std::size_t row, const std::byte* values) {
    const auto tokens = list_own_tokens(row);
    if (tokens.empty()) return;
    const auto place = packed_places_[row];
    for (const auto token : tokens) index[token - first_token_] = place;
    convert_row(values, packed + index_bytes_ + place * row_bytes());
  });
}

Bytes SparseEmbedding::packed_bytes() const noexcept {
  return index_bytes_ + packed_ * row_bytes();
}

device::IndexSelect SparseEmbedding::unpack(const std::byte* packed, std::byte* output) const noexcept {
  return {.type = computes_,
          .values = packed + index_bytes_,
          .index = reinterpret_cast<const std::uint32_t*>(packed),
          .count = end_token_ - first_token_,
          .columns = columns_,
          .out = output};
}

/// On top of what is there.
void SparseEmbedding::sum_tokens(std::size_t row, const std::byte* gradient, float* sum) const {
  const auto given = state::field_bytes(computes_).grad;
  for (const auto token : tokens_of(row)) {
    device::add(computes_, gradient + token * columns_ * given, sum, columns_);
  }
}

void SparseEmbedding::take_sums(const state::Chunk& chunk, const float* gradient) {
  const auto kept = in_chunk(chunk);
  device::compute(device::Gather{.type = device::Element::fp32,
                                 .values = reinterpret_cast<const std::byte*>(gradient),
                                 .rows = kept.rows.data(),
                                 .base = kept.base,
                                 .count = kept.rows.size(),
                                 .columns = columns_,
                                 .out = sum_of(kept.first)},
                  {});
}

double SparseEmbedding::norm_of(const state::Chunk& chunk) const {
  const auto kept = in_chunk(chunk);
  double out = 0;
  for (std::size_t i = 0; i < kept.rows.size(); ++i) out += norms_[kept.first + i - own_first_].sum;
  return out;
}

std::size_t SparseEmbedding::count_rows(const std::vector<Part>& parts, std::size_t maker, std::size_t owner) const {
  std::size_t out = 0;
  for (auto row = first_row_of(owner); row < first_row_of(owner + 1); ++row) out += parts_of(parts, maker, row);
  return out;
}

std::size_t SparseEmbedding::count_rows(std::size_t process, std::size_t owner) const {
  return count_rows(parts_, process, owner);
}

std::size_t SparseEmbedding::count_machine_rows(std::size_t machine, std::size_t owner) const {
  return count_rows(machines_, machine, owner);
}

void SparseEmbedding::sum_parts(const std::byte* gradient, float* out, ThreadPool& thread_pool) const {
  std::vector<std::size_t> first(rows_.size() + 1, 0);
  for (std::size_t row = 0; row < rows_.size(); ++row) first[row + 1] = first[row] + parts_of(parts_, world_.rank, row);
  thread_pool.run(ceil_div(rows_.size(), kRowsPerTile), [&](std::size_t tile) {
    RankTree tree(computes_, gradient, columns_, rank_ends_);
    const auto end = std::min((tile + 1) * kRowsPerTile, rows_.size());
    for (auto row = tile * kRowsPerTile; row < end; ++row) {
      auto* to = out + first[row] * columns_;
      for (const auto& part : parts_) {
        if (part.maker != world_.rank) continue;
        const auto tokens = tokens_of(row, part);
        if (tokens.empty()) continue;
        tree.sum(tokens, part.of, first_token_, to);
        to += columns_;
      }
    }
  });
}

/// The sums of a row that its parts have, which lie one behind the other.
void SparseEmbedding::take(const Part& part, std::size_t row, float*& next, std::vector<Partial>& sums) const {
  const bool any = !tokens_of(row, part).empty();
  sums.push_back({part.of, any ? next : nullptr});
  if (any) next += columns_;
}

void SparseEmbedding::join_parts(std::size_t owner, Parts parts, float* out) const {
  std::vector<Partial> sums;
  for (auto row = first_row_of(owner); row < first_row_of(owner + 1); ++row) {
    sums.clear();
    for (const auto& part : parts_) take(part, row, parts[part.maker], sums);
    for (const auto& joined : join_partials(sums, columns_)) {
      if (joined.sum == nullptr) continue;
      std::memcpy(out, joined.sum, columns_ * sizeof(float));
      out += columns_;
    }
  }
}

void SparseEmbedding::round_parts(Parts parts) {
  const auto here = world_.machine_of(world_.rank);
  std::vector<Partial> sums;
  for (auto row = own_first_; row < own_end_; ++row) {
    sums.clear();
    auto own = parts_.begin();
    for (const auto& part : machines_) {
      if (part.maker != here) take(part, row, parts[plan::relay_of(world_, part.maker, world_.rank)], sums);
      const auto end = part.of.first + part.of.size;
      for (; own != parts_.end() && own->of.first < end; ++own) take(*own, row, parts[own->maker], sums);
    }
    round_row(row, add_partials(sums, columns_));
  }
  put_rounded();
}

/// On top of what a tied head left.
void SparseEmbedding::round_row(std::size_t row, const float* of_tokens) {
  auto* sum = sum_of(row);
  if (!dense_) std::memset(sum, 0, columns_ * sizeof(float));
  device::add(device::Element::fp32, reinterpret_cast<const std::byte*>(of_tokens), sum, columns_);
  const auto bytes = state::field_bytes(type_).grad;
  auto* out = rounded_ + plan::sparse_header(own_end_ - own_first_) + (row - own_first_) * columns_ * bytes;
  norms_[row - own_first_] = device::round_norm(type_, sum, out, columns_);
}

/// Ids and count of this process's rows before them.
void SparseEmbedding::put_rounded() {
  const auto count = static_cast<std::int64_t>(own_end_ - own_first_);
  std::memcpy(rounded_, &count, sizeof count);
  std::memcpy(rounded_ + sizeof count, rows_.data() + own_first_, (own_end_ - own_first_) * sizeof count);
}

kernels::Norm SparseEmbedding::round(const std::byte* gradient, ThreadPool& thread_pool) {
  const auto bytes = state::field_bytes(type_).grad;
  const bool ranked = virtual_ranks_ > 1 && !rank_ends_.empty();
  thread_pool.run(ceil_div(rows_.size(), kRowsPerTile), [&](std::size_t tile) {
    std::optional<RankTree> tree;
    if (ranked) tree.emplace(computes_, gradient, columns_, rank_ends_);
    const auto end = std::min((tile + 1) * kRowsPerTile, rows_.size());
    for (auto row = tile * kRowsPerTile; row < end; ++row) {
      auto* sum = sums_ + row * columns_;
      if (!dense_) std::memset(sum, 0, columns_ * sizeof(float));
      if (tree) {
        const auto* of_ranks = reinterpret_cast<const std::byte*>(tree->sum(tokens_of(row)));
        device::add(device::Element::fp32, of_ranks, sum, columns_);
      } else {
        sum_tokens(row, gradient, sum);
      }
      auto* out = rounded_ + plan::sparse_header(rows_.size()) + row * columns_ * bytes;
      norms_[row] = device::round_norm(type_, sum, out, columns_);
    }
  });
  put_rounded();
  kernels::Norm total;
  for (std::size_t row = 0; row < rows_.size(); ++row) total.sum += norms_[row].sum;
  return total;
}

std::span<const std::byte> SparseEmbedding::rounded() const noexcept {
  const auto count = own_end_ - own_first_;
  return {rounded_ + plan::sparse_header(count), count * columns_ * state::field_bytes(type_).grad};
}

void SparseEmbedding::patch(const state::Chunk& chunk, std::byte* gradient) const {
  const auto most = std::min(table_rows_, tokens_);
  patch_sparse(table_, type_, chunk, gradient,
               {rounded_, plan::sparse_bytes(most, columns_, state::field_bytes(type_).grad)});
}

void patch_sparse(const state::Block& table, state::ComputeType type, const state::Chunk& chunk, std::byte* gradient,
                  std::span<const std::byte> stored) {
  std::uint64_t count = 0;
  std::memcpy(&count, stored.data(), sizeof count);
  const auto row = table.columns * state::field_bytes(type).grad;
  const bool there = count <= table.rows && plan::sparse_header(count) + count * row <= stored.size();
  const auto ids = std::span(reinterpret_cast<const std::int64_t*>(stored.data() + sizeof count), there ? count : 0);
  const bool known = ids.empty() || (ids.front() >= 0 && ids.back() < static_cast<std::int64_t>(table.rows));
  if (!there || !std::ranges::is_sorted(ids) || !known) {
    throw Error(ErrorCode::corrupt, "the stored gradient of the embedding names rows that it does not have");
  }
  const auto first = static_cast<std::int64_t>(chunk.first / table.columns);
  const auto begin = std::ranges::lower_bound(ids, first);
  const auto end = std::ranges::lower_bound(ids, first + static_cast<std::int64_t>(chunk.used / table.columns));
  const auto* rows = stored.data() + plan::sparse_header(count);
  for (auto id = begin; id != end; ++id) {
    std::memcpy(gradient + static_cast<std::uint64_t>(*id - first) * row, rows + (id - ids.begin()) * row, row);
  }
}

}  // namespace spillway::execute
