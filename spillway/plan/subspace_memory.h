// DRAM that subspaces take beside the arena.
#pragma once

#include <cstddef>

#include "spillway/state/layout.h"

namespace spillway::plan {

/// Whole gradients that passes leave, to be learned from behind them; where there is no room for one more, the pass
/// learns itself.
inline constexpr std::size_t kGradientsLeft = 2;

/// Projectors of every matrix, twice (those that the next step has, and new ones while they are learned), what is known
/// of their errors; the change of the largest S for each of `lanes` that update (of a
/// device: its moments, while they are carried over); the gradients that wait, each as large
/// as the largest; and the work of learning a pair in a pass and another beside it. 0 without subspaces.
[[nodiscard]] Bytes subspace_bytes(const state::Layout& layout, std::size_t lanes);

}  // namespace spillway::plan
