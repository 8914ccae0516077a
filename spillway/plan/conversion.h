// The copies of weights that passes multiply by: of blocks whose weights layers cannot multiply by as they are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

/// Whether a pass multiplies by a copy of its weights: where layers multiply in another type than the run's, or where
/// the block has weights in a form that they cannot multiply by. A pass that gathers rows reads them as they are kept.
[[nodiscard]] bool converts(const Description& description, const state::Layout& layout, const Pass& pass);

/// What the values of a chunk are in that copy: of what is kept in fp32 the same, else what layers multiply in.
[[nodiscard]] state::ComputeType converted_type(const Description& description, const state::Chunk& chunk) noexcept;
/// Bytes of such a chunk: its values without gaps.
[[nodiscard]] Bytes converted_bytes(const Description& description, const state::Chunk& chunk) noexcept;
/// Bytes of the copy that a pass multiplies by: of its chunks, one after the other, and a place for pieces. 0: it has
/// none.
[[nodiscard]] Bytes converted_bytes(const Description& description, const state::Layout& layout, const Pass& pass);

/// Values of a chunk, by number.
struct ValueRange {
  std::uint64_t first = 0, count = 0;
};
/// Those that a pass has converted when it begins, without what it converts in pieces (state::TensorSpec).
[[nodiscard]] std::vector<ValueRange> ranges_at_once(const state::Layout& layout, const state::Chunk& chunk);

/// Pieces of a tensor that have room in their place at once.
inline constexpr std::uint64_t kPiecesAtOnce = 4;
/// Where a part of a tensor's pieces lies.
struct PieceSpan {
  std::size_t chunk = 0;
  ValueRange values;        ///< of the chunk
  std::uint64_t first = 0;  ///< where they begin in the pieces' place, in values
};
/// The parts of `count` pieces from number `first` on. Throws Error(bad_input) where the tensor has no such pieces, or
/// where more than kPiecesAtOnce are asked for.
[[nodiscard]] std::vector<PieceSpan> piece_spans(const state::Layout& layout, std::size_t tensor, std::uint64_t first,
                                                 std::uint64_t count);

/// Where passes of its block find a tensor, from the start of the block's weights or of their copy, in elements of what
/// layers multiply in; of one that is converted in pieces the place of these. Throws std::out_of_range where there is
/// no such tensor.
[[nodiscard]] std::uint64_t weight_first(const Description& description, const state::Layout& layout,
                                         std::size_t tensor);

}  // namespace spillway::plan
