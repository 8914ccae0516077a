// Gradients of a table that the head and the embedding share.
#pragma once

#include <cstddef>
#include <vector>

#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/squares.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// A slice ends here after the head's pass. Rows that no token of the step names are complete, and their squares are
/// taken. The sums of the other rows go to the embedding, which adds its part and rounds them.
class TiedTable {
 public:
  /// `rows`: null where there is no embedding. `squares`: where the device's work writes them. All references must
  /// outlive it.
  TiedTable(const state::Layout& layout, SparseEmbedding* rows, state::ComputeType type, const sink::Arithmetic& where,
            SquareSlots& slots, double* squares);

  /// A step begins.
  void begin() noexcept { listed_ = false; }
  /// True if the embedding shares the table of that block.
  [[nodiscard]] bool has(std::size_t block) const noexcept { return rows_ != nullptr && rows_->block() == block; }
  /// The gradient of a slice is rounded. `sums`: the values that were rounded; null: `gradient` has them.
  void end_slice(std::size_t slice, const std::byte* gradient, const float* sums);

 private:
  void keep_rows(const state::Chunk& chunk, const std::byte* gradient, const float* sums);
  void list_others();
  void send(Bytes to, const void* from, Bytes bytes);
  [[nodiscard]] bool is_apart() const noexcept { return where_.workspace != nullptr; }

  const state::Layout& layout_;
  SparseEmbedding* const rows_;
  const state::ComputeType type_;
  const sink::Arithmetic& where_;
  SquareSlots& slots_;
  double* const squares_;
  std::vector<OtherRows> others_;    ///< by slice; of this step
  std::vector<device::Part> parts_;  ///< of `others_`
  bool listed_ = false;              ///< the two are of this step
};

}  // namespace spillway::execute
