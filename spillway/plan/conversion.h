// The copies of weights that passes multiply by: of blocks whose weights layers cannot multiply by as they are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

/// True if the block has weights in a form that layers cannot multiply by, or pieces, whose copies lie in one place.
[[nodiscard]] bool needs_copy(const state::Layout& layout, const state::Block& block);
/// True if a pass multiplies by a copy of its weights. Layers may multiply in another type than the run's, or the block
/// may need a copy. A pass that gathers rows reads weights as stored.
[[nodiscard]] bool converts(const Description& description, const state::Layout& layout, const Pass& pass);

/// Type of a chunk's values in that copy: fp32 for chunks stored in fp32, else the type that layers multiply in.
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
/// Ranges that a pass has converted when it begins, without the ones it converts in pieces (state::TensorSpec).
[[nodiscard]] std::vector<ValueRange> ranges_at_once(const state::Layout& layout, const state::Chunk& chunk);

/// Pieces of a tensor that have room in their place at once.
inline constexpr std::uint64_t kPiecesAtOnce = 4;
/// Place of a part of a tensor's pieces.
struct PieceSpan {
  std::size_t chunk = 0;
  ValueRange values;        ///< of the chunk
  std::uint64_t first = 0;  ///< where they begin in the pieces' place, in values
};
/// The parts of `count` pieces from number `first` on. Throws Error(bad_input) where the tensor has no such pieces, or
/// where more than kPiecesAtOnce are asked for.
[[nodiscard]] std::vector<PieceSpan> piece_spans(const state::Layout& layout, std::size_t tensor, std::uint64_t first,
                                                 std::uint64_t count);

/// Offset of a tensor in the block's weights or in their copy, in elements of the type that layers multiply in. A
/// tensor converted in pieces has the offset of its pieces. Throws std::out_of_range if there is no such tensor.
[[nodiscard]] std::uint64_t weight_first(const Description& description, const state::Layout& layout,
                                         std::size_t tensor);

}  // namespace spillway::plan
