// Where the sums of squares of a step's gradients lie, and how they are added: the tiles of each tensor or slice in
// order to one sum, and these in order, so that it does not matter who made them when.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/device/work.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class SparseEmbedding;

/// The rows of one slice of a tied table that no token of the step names: runs between those that are named.
struct OtherRows {
  std::size_t first = 0, count = 0;      ///< into the step's list of parts
  std::vector<std::uint32_t> runs = {};  ///< parts of each run
};

/// Lists the rows of `chunk` that `rows` does not name; appends to `parts`.
void list_other_rows(const SparseEmbedding& rows, const state::Chunk& chunk, std::uint64_t columns, OtherRows& out,
                     std::vector<device::Part>& parts);

/// A place for every tile of every tensor and of every slice of a table.
class SquareSlots {
 public:
  explicit SquareSlots(const state::Layout& layout);

  void begin();  ///< of a step: nothing is written
  /// Number of the first place, which is written from now on.
  std::size_t tensor(std::size_t tensor) noexcept;
  std::size_t slice(std::size_t chunk) noexcept;
  /// Takes places for a tied slice: `others` are in those from others_at() + others.first on.
  std::size_t other_rows(std::size_t chunk, const OtherRows& others) noexcept;

  [[nodiscard]] std::size_t others_at() const noexcept { return end_; }
  /// The sum of everything that was written; `squares` holds all places.
  [[nodiscard]] double total(std::span<const double> squares) const;

 private:
  struct Slots {
    std::size_t first = 0, count = 0;
    bool written = false;
    const OtherRows* others = nullptr;  ///< instead
  };
  [[nodiscard]] double sum(const Slots& slots, std::span<const double> squares) const;

  std::size_t tensors_ = 0;
  std::vector<Slots> slots_;  ///< by tensor, then by chunk
  std::size_t end_ = 0;
};

}  // namespace spillway::execute
