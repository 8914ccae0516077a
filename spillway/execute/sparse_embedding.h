// The embedding's side of a step: rows gathered for its tokens, and the gradient of just those rows.
//
// A step touches few rows of the table. Their gradient is summed in fp32, in token order, on top of what a tied head
// left for them (execute/gradients brings it), rounded once, and put in place when the slice is updated; every other
// row's gradient is the head's (tied) or zero. With several virtual ranks each rank's tokens are summed for themselves,
// the ranks as plan::VirtualRanks says, and what a tied head left is added to that.
//
// In a world of several processes each one knows the ids of the whole step. It gathers the rows of its own tokens, sums
// what they give each row by maximal subtree of its ranks, and sends these sums to the owners of the rows, who finish
// the tree and keep the rows of their own slices. What goes to another machine is added to sums of this machine's
// subtrees first (plan/routes.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/device/work.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/execute/token_rows.h"
#include "spillway/kernels/gradient.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// Puts the rows of `chunk` into its gradient. `stored` begins as the memory that SparseEmbedding::round fills. Throws
/// Error(corrupt) when that cannot be of this table.
void patch_sparse(const state::Block& table, state::ComputeType type, const state::Chunk& chunk, std::byte* gradient,
                  std::span<const std::byte> stored);

class SparseEmbedding {
 public:
  /// A table that is also the head has a gradient in every row. Allocates for the largest step.
  SparseEmbedding(const plan::Description& description, const state::Layout& layout, std::size_t block);

  /// Tells where the fp32 sums lie (min(rows, tokens) * columns elements) and the rounded rows: count and ids, then the
  /// rows (plan::sparse_bytes).
  void place(float* sums, std::byte* rounded) noexcept;

  /// Takes the ids of a step, of all processes, and the tokens of each of its micro-batches, which with one virtual
  /// rank nobody asks for. Error(bad_input) names the first id outside the table. The rounded rows of the step before
  /// stay until round().
  void begin(std::span<const std::int64_t> ids, std::span<const std::uint64_t> counts = {});

  /// Copies the rows of all tokens of this process whose id lies in `chunk` from `weights` to output [tokens, columns],
  /// of the type that passes compute in.
  void gather(const state::Chunk& chunk, const std::byte* weights, std::byte* output, ThreadPool& thread_pool) const;

  // Packed rows (plan::Description::packed_rows_bytes) cross to a device:

  /// Copies the rows of this process's tokens whose id lies in `chunk`, each row once, and writes the index of the
  /// tokens.
  void pack(const state::Chunk& chunk, const std::byte* weights, std::byte* packed, ThreadPool& thread_pool) const;
  /// Bytes of the step's packed rows.
  [[nodiscard]] Bytes packed_bytes() const noexcept;
  /// The work that gathers `output` [tokens, columns] on a device.
  [[nodiscard]] device::IndexSelect unpack(const std::byte* packed, std::byte* output) const noexcept;

  /// The step's rows of the table that lie in a chunk.
  struct Kept {
    std::span<const std::int64_t> rows;  ///< ids, rising
    std::size_t first = 0;               ///< of the first among all the step's rows
    std::int64_t base = 0;               ///< the chunk's first row
  };
  [[nodiscard]] Kept in_chunk(const state::Chunk& chunk) const;
  [[nodiscard]] std::span<const std::int64_t> rows() const noexcept { return rows_.ids(); }
  /// Place of the fp32 sum of row number `row` of the step's rows; a tied head leaves its part there.
  [[nodiscard]] float* sum_of(std::size_t row) const noexcept { return sums_ + (row - rows_.own_first()) * columns_; }
  /// A tied head on the host leaves its part: rows of the fp32 gradient of a chunk.
  void take_sums(const state::Chunk& chunk, const float* gradient);
  /// Sums of squares of the rows of `chunk`, added in order, after round().
  [[nodiscard]] double norm_of(const state::Chunk& chunk) const;

  /// Adds d loss / d output [tokens, columns], of the same type, rounds; returns the norm of the step's rows. They are
  /// pending from here.
  kernels::Norm round(const std::byte* gradient, ThreadPool& thread_pool);

  // In a world of several processes, instead of round():

  /// Rows of sums that a process of this machine has made for an owner: of each of its rows one for each subtree of the
  /// process that has tokens of it. All of them know it, since they know the step's ids.
  [[nodiscard]] std::size_t count_rows(std::size_t process, std::size_t owner) const;
  /// Rows of sums that a machine has made for an owner, one for each subtree of the machine.
  [[nodiscard]] std::size_t count_machine_rows(std::size_t machine, std::size_t owner) const;
  /// Makes this process's sums of d loss / d output [its tokens, columns], by owner, all others and itself: `out` holds
  /// as many rows as it has tokens.
  void sum_parts(const std::byte* gradient, float* out, ThreadPool& thread_pool) const;
  /// Sums of the rows of one owner from each process, by rank; null: none has come.
  using Parts = std::vector<float*>;
  /// Adds those of this machine's processes, which are overwritten, to sums of its subtrees, in `out`.
  void join_parts(std::size_t owner, Parts parts, float* out) const;
  /// Ends the tree of each row of this process, on top of what a tied head left for it, and rounds. `parts`: of the
  /// processes of this machine, and by relay those of each other machine; they are overwritten.
  void round_parts(Parts parts);

  /// The rounded rows of this process, after round() or round_parts().
  [[nodiscard]] std::span<const std::byte> rounded() const noexcept;
  /// Puts the rounded rows of `chunk` into its gradient.
  void patch(const state::Chunk& chunk, std::byte* gradient) const;

  [[nodiscard]] std::size_t block() const noexcept { return block_; }
  [[nodiscard]] bool dense() const noexcept { return dense_; }

 private:
  void number_rows();
  /// Calls body(row number, its weights) for the step's rows in a chunk, from several threads.
  template <class Body>
  void each_row(const state::Chunk& chunk, const std::byte* weights, ThreadPool& thread_pool, const Body& body) const;
  /// The weights of a row in the type that passes compute in.
  void convert_row(const std::byte* from, std::byte* to) const;
  [[nodiscard]] std::uint64_t row_bytes() const { return columns_ * state::field_bytes(computes_).weight; }
  void take(const TokenRows::Part& part, std::size_t row, float*& next, std::vector<Partial>& sums) const;
  void round_row(std::size_t row, const float* of_tokens);
  void put_rounded();
  void sum_tokens(std::size_t row, const std::byte* gradient, float* sum) const;

  const std::size_t block_;
  const state::Block& table_;
  const std::uint64_t columns_;
  const state::ComputeType type_, computes_;
  const bool dense_;
  const std::uint64_t virtual_ranks_;
  const state::World world_;
  const Bytes index_bytes_;                   ///< of packed rows
  TokenRows rows_;                            ///< of this step
  std::vector<std::uint32_t> packed_places_;  ///< by row: its place among packed rows
  std::uint64_t packed_ = 0;                  ///< rows that this process's tokens have
  std::vector<kernels::Norm> norms_;          ///< by row
  float* sums_ = nullptr;
  std::byte* rounded_ = nullptr;
};

}  // namespace spillway::execute
