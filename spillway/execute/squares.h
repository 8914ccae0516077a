// Places of the sums of squares of a step's gradients, and the order of their addition. The tiles of each tensor or
// slice are added in order to one sum, and these in order: it does not matter who made them when.
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
  /// A part of a tensor whose tiles are added to a sum of their own.
  struct Piece {
    std::size_t chunk = 0;                  ///< that it lies in, or begins in
    std::uint64_t first = 0, elements = 0;  ///< of the tensor's gradient
  };

  /// `by_chunk`: the parts of a tensor that lie in different chunks are pieces of it, so that whoever has a chunk can
  /// add up its tiles; else a tensor is one piece.
  explicit SquareSlots(const state::Layout& layout, bool by_chunk = false);

  void begin();  ///< of a step: nothing is written
  [[nodiscard]] std::span<const Piece> pieces(std::size_t tensor) const noexcept {
    return std::span(pieces_).subspan(first_piece_[tensor], first_piece_[tensor + 1] - first_piece_[tensor]);
  }
  /// Number of the first place of a piece, which is written from now on.
  std::size_t piece(std::size_t tensor, std::size_t number) noexcept { return write(first_piece_[tensor] + number); }
  std::size_t tensor(std::size_t tensor) noexcept { return piece(tensor, 0); }  ///< that is one piece
  std::size_t slice(std::size_t chunk) noexcept;
  /// Number of the first place of a tied slice, behind those of pieces and slices.
  std::size_t other_rows(std::size_t chunk, const OtherRows& others) noexcept;

  [[nodiscard]] std::size_t count() const noexcept { return slots_.size(); }  ///< of pieces and slices
  /// Appends the sums of these, in the order in which they are to be added; 0 of what was not written. `squares` holds
  /// all places.
  void append_sums(std::span<const double> squares, std::vector<double>& out) const;

 private:
  struct Slots {
    std::size_t first = 0, count = 0;
    bool written = false;
    const OtherRows* others = nullptr;  ///< instead
  };
  std::size_t write(std::size_t number) noexcept;
  [[nodiscard]] double sum(const Slots& slots, std::span<const double> squares) const;

  std::vector<Piece> pieces_;             ///< by tensor
  std::vector<std::size_t> first_piece_;  ///< by tensor, and their count
  std::vector<Slots> slots_;              ///< by piece, then by chunk
  std::size_t end_ = 0;
};

}  // namespace spillway::execute
