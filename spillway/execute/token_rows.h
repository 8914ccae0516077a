// The rows of the embedding that a step's tokens have, and the tokens of each: of the whole step, of this process, and
// of each maximal subtree of virtual ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/virtual_ranks.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class TokenRows {
 public:
  /// A maximal subtree of the virtual ranks of a process or of a machine.
  struct Part {
    plan::Subtree of;
    std::size_t maker = 0;  ///< that process or machine
    std::uint64_t first_token = 0, end_token = 0;
  };
  using Tokens = std::span<const std::uint32_t>;

  /// Allocates for the largest step.
  TokenRows(const plan::Description& description, const state::Layout& layout, std::size_t block);

  /// Takes what SparseEmbedding::begin() does.
  void begin(std::span<const std::int64_t> ids, std::span<const std::uint64_t> counts);

  /// The rows' ids in the table, rising. A row's number is its place here.
  [[nodiscard]] std::span<const std::int64_t> ids() const noexcept { return rows_; }
  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
  /// Most rows of a step.
  [[nodiscard]] std::uint64_t most() const noexcept { return most_; }
  /// Number of the first of the step's rows that the process owns, or that one behind it does.
  [[nodiscard]] std::size_t first_row_of(std::size_t process) const;
  /// The rows that this process owns are [own_first, own_end).
  [[nodiscard]] std::size_t own_first() const noexcept { return own_first_; }
  [[nodiscard]] std::size_t own_end() const noexcept { return own_end_; }

  /// Tokens of a row, rising.
  [[nodiscard]] Tokens tokens_of(std::size_t row) const {
    return std::span(order_).subspan(first_[row], first_[row + 1] - first_[row]);
  }
  [[nodiscard]] Tokens tokens_of(std::size_t row, const Part& part) const {
    return tokens_between(row, part.first_token, part.end_token);
  }
  [[nodiscard]] Tokens list_own_tokens(std::size_t row) const { return tokens_between(row, first_token_, end_token_); }
  /// This process has `own_tokens` from `first_token` on.
  [[nodiscard]] std::uint64_t first_token() const noexcept { return first_token_; }
  [[nodiscard]] std::uint64_t own_tokens() const noexcept { return end_token_ - first_token_; }

  /// Ends of the virtual ranks of the step: one past the last token of each.
  [[nodiscard]] std::span<const std::uint64_t> rank_ends() const noexcept { return rank_ends_; }
  /// Subtrees of this machine's processes, in the order of ranks, and those of all machines. One process has none.
  [[nodiscard]] std::span<const Part> parts() const noexcept { return parts_; }
  [[nodiscard]] std::span<const Part> machine_parts() const noexcept { return machines_; }
  /// Subtrees, of `parts`, of a process or machine that have tokens of a row.
  [[nodiscard]] std::size_t count_parts(std::span<const Part> parts, std::size_t maker, std::size_t row) const;
  /// Subtrees of all rows of an owner, counted in the same way.
  [[nodiscard]] std::size_t count_rows(std::span<const Part> parts, std::size_t maker, std::size_t owner) const;

 private:
  void list_ranks(std::span<const std::uint64_t> counts, const plan::VirtualRanks& ranks);
  void sort_tokens();
  void list_parts(const plan::VirtualRanks& ranks);
  void list_parts(const plan::VirtualRanks& of, std::size_t maker, std::vector<Part>& parts) const;
  [[nodiscard]] std::uint64_t first_token_of(std::uint64_t rank) const;
  /// Tokens [first, end) of a row's.
  [[nodiscard]] Tokens tokens_between(std::size_t row, std::uint64_t first, std::uint64_t end) const;

  const std::uint64_t table_rows_, virtual_ranks_;
  const state::World world_;
  const std::uint64_t most_tokens_, most_;
  std::vector<std::int64_t> first_id_;             ///< by process, and the end: the first row of the table that it owns
  std::vector<Part> parts_, machines_;             ///< of parts() and machine_parts()
  std::uint64_t first_token_ = 0, end_token_ = 0;  ///< of this process
  std::size_t own_first_ = 0, own_end_ = 0;        ///< rows_ that this process owns
  std::vector<std::uint64_t> rank_ends_;
  std::vector<std::uint32_t> order_;  ///< tokens by rising id, then by place
  std::vector<std::int64_t> ids_;     ///< of this step, by token
  std::vector<std::int64_t> rows_;    ///< distinct ids of this step, rising
  std::vector<std::uint32_t> first_;  ///< by row: its first token in order_; one more at the end
};

}  // namespace spillway::execute
