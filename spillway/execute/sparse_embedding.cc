#include "spillway/execute/sparse_embedding.h"

#include <algorithm>
#include <bit>
#include <cstring>
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
  /// `ends`: TokenRows::rank_ends().
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
      columns_(layout.blocks()[block].columns),
      type_(description.weight_dtype),
      computes_(description.computes()),
      dense_(plan::has_dense_grad(description, layout, static_cast<plan::Index>(table_.first_chunk))),
      virtual_ranks_(description.virtual_ranks),
      world_(description.world),
      index_bytes_(description.row_index_bytes()),
      rows_(description, layout, block) {
  packed_places_.reserve(rows_.most());
  norms_.resize(rows_.most());
}

void SparseEmbedding::place(float* sums, std::byte* rounded) noexcept {
  sums_ = sums;
  rounded_ = rounded;
}

void SparseEmbedding::begin(std::span<const std::int64_t> ids, std::span<const std::uint64_t> counts) {
  rows_.begin(ids, counts);
  number_rows();
}

/// Rows without a token of this process have no place.
void SparseEmbedding::number_rows() {
  packed_places_.resize(rows_.size());
  packed_ = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    packed_places_[row] = static_cast<std::uint32_t>(packed_);
    if (!rows_.list_own_tokens(row).empty()) ++packed_;
  }
}

SparseEmbedding::Kept SparseEmbedding::in_chunk(const state::Chunk& chunk) const {
  const auto base = static_cast<std::int64_t>(chunk.first / columns_);
  const auto ids = rows_.ids();
  const auto begin = std::ranges::lower_bound(ids, base);
  const auto end = std::ranges::lower_bound(ids, base + static_cast<std::int64_t>(chunk.used / columns_));
  return {{begin, end}, static_cast<std::size_t>(begin - ids.begin()), base};
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
    for (const auto token : rows_.list_own_tokens(row)) {
      convert_row(values, output + (token - rows_.first_token()) * row_bytes());
    }
  });
}

void SparseEmbedding::pack(const state::Chunk& chunk, const std::byte* weights, std::byte* packed,
                           ThreadPool& thread_pool) const {
  auto* const index = reinterpret_cast<std::uint32_t*>(packed);
  each_row(chunk, weights, thread_pool, [&](std::size_t row, const std::byte* values) {
    const auto tokens = rows_.list_own_tokens(row);
    if (tokens.empty()) return;
    const auto place = packed_places_[row];
    for (const auto token : tokens) index[token - rows_.first_token()] = place;
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
          .count = rows_.own_tokens(),
          .columns = columns_,
          .out = output};
}

/// On top of what is there.
void SparseEmbedding::sum_tokens(std::size_t row, const std::byte* gradient, float* sum) const {
  const auto given = state::field_bytes(computes_).grad;
  for (const auto token : rows_.tokens_of(row)) {
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
  for (std::size_t i = 0; i < kept.rows.size(); ++i) out += norms_[kept.first + i - rows_.own_first()].sum;
  return out;
}

std::size_t SparseEmbedding::count_rows(std::size_t process, std::size_t owner) const {
  return rows_.count_rows(rows_.parts(), process, owner);
}

std::size_t SparseEmbedding::count_machine_rows(std::size_t machine, std::size_t owner) const {
  return rows_.count_rows(rows_.machine_parts(), machine, owner);
}

void SparseEmbedding::sum_parts(const std::byte* gradient, float* out, ThreadPool& thread_pool) const {
  std::vector<std::size_t> first(rows_.size() + 1, 0);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    first[row + 1] = first[row] + rows_.count_parts(rows_.parts(), world_.rank, row);
  }
  thread_pool.run(ceil_div(rows_.size(), kRowsPerTile), [&](std::size_t tile) {
    RankTree tree(computes_, gradient, columns_, rows_.rank_ends());
    const auto end = std::min((tile + 1) * kRowsPerTile, rows_.size());
    for (auto row = tile * kRowsPerTile; row < end; ++row) {
      auto* to = out + first[row] * columns_;
      for (const auto& part : rows_.parts()) {
        if (part.maker != world_.rank) continue;
        const auto tokens = rows_.tokens_of(row, part);
        if (tokens.empty()) continue;
        tree.sum(tokens, part.of, rows_.first_token(), to);
        to += columns_;
      }
    }
  });
}

/// The sums of a row that its parts have, which lie one behind the other.
void SparseEmbedding::take(const TokenRows::Part& part, std::size_t row, float*& next,
                           std::vector<Partial>& sums) const {
  const bool any = !rows_.tokens_of(row, part).empty();
  sums.push_back({part.of, any ? next : nullptr});
  if (any) next += columns_;
}

void SparseEmbedding::join_parts(std::size_t owner, Parts parts, float* out) const {
  std::vector<Partial> sums;
  for (auto row = rows_.first_row_of(owner); row < rows_.first_row_of(owner + 1); ++row) {
    sums.clear();
    for (const auto& part : rows_.parts()) take(part, row, parts[part.maker], sums);
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
  for (auto row = rows_.own_first(); row < rows_.own_end(); ++row) {
    sums.clear();
    auto own = rows_.parts().begin();
    for (const auto& part : rows_.machine_parts()) {
      if (part.maker != here) take(part, row, parts[plan::relay_of(world_, part.maker, world_.rank)], sums);
      const auto end = part.of.first + part.of.size;
      for (; own != rows_.parts().end() && own->of.first < end; ++own) take(*own, row, parts[own->maker], sums);
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
  const auto first = rows_.own_first();
  auto* out = rounded_ + plan::sparse_header(rows_.own_end() - first) + (row - first) * columns_ * bytes;
  norms_[row - first] = device::round_norm(type_, sum, out, columns_);
}

/// Ids and count of this process's rows before them.
void SparseEmbedding::put_rounded() {
  const auto own = rows_.ids().subspan(rows_.own_first(), rows_.own_end() - rows_.own_first());
  const auto count = static_cast<std::int64_t>(own.size());
  std::memcpy(rounded_, &count, sizeof count);
  std::memcpy(rounded_ + sizeof count, own.data(), own.size_bytes());
}

kernels::Norm SparseEmbedding::round(const std::byte* gradient, ThreadPool& thread_pool) {
  const auto bytes = state::field_bytes(type_).grad;
  const bool ranked = virtual_ranks_ > 1 && !rows_.rank_ends().empty();
  thread_pool.run(ceil_div(rows_.size(), kRowsPerTile), [&](std::size_t tile) {
    std::optional<RankTree> tree;
    if (ranked) tree.emplace(computes_, gradient, columns_, rows_.rank_ends());
    const auto end = std::min((tile + 1) * kRowsPerTile, rows_.size());
    for (auto row = tile * kRowsPerTile; row < end; ++row) {
      auto* sum = sums_ + row * columns_;
      if (!dense_) std::memset(sum, 0, columns_ * sizeof(float));
      if (tree) {
        const auto* of_ranks = reinterpret_cast<const std::byte*>(tree->sum(rows_.tokens_of(row)));
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
  const auto count = rows_.own_end() - rows_.own_first();
  return {rounded_ + plan::sparse_header(count), count * columns_ * state::field_bytes(type_).grad};
}

void SparseEmbedding::patch(const state::Chunk& chunk, std::byte* gradient) const {
  patch_sparse(table_, type_, chunk, gradient,
               {rounded_, plan::sparse_bytes(rows_.most(), columns_, state::field_bytes(type_).grad)});
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
