// Memory and room on the paths for pieces that change places while steps run (execute/piece_swaps.h).
#pragma once

#include <cstdint>

#include "spillway/plan/description.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

/// Staging for chunks that swap places, two by two.
struct PieceStaging {
  Bytes pair = 0;           ///< for the weights of two chunks
  std::uint32_t pairs = 0;  ///< that are under way at most; 0: no chunk changes its place

  [[nodiscard]] constexpr Bytes bytes() const noexcept { return pair * pairs; }
};

/// True if the chunk may take another place between two steps: it is frozen, no other process sends or needs it, and
/// some steps do not ask for it.
[[nodiscard]] bool is_movable(const Description& description, const state::Chunk& chunk);

/// Sixteen pairs, or as many as 16 MiB hold, and one at least.
[[nodiscard]] PieceStaging piece_staging(const Description& description, const state::Layout& layout);

}  // namespace spillway::plan
