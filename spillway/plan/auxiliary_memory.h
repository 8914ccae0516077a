// DRAM that reduced gradients take beside the arena.
#pragma once

#include <cstddef>

#include "spillway/state/layout.h"

namespace spillway::plan {

/// Whole gradients that passes leave, to be refitted from behind them; where there is no room for one more, the pass
/// refits them itself.
inline constexpr std::size_t kGradientsLeft = 2;

/// The auxiliary fields of every matrix, twice (those that the next step has, and new ones during a refit), what is
/// known of their errors, in `sums` sums; the change of the largest S for each of `lanes` that update (of a
/// device: its moments, while they are carried over); the gradients that wait, each as large
/// as the largest; and the work of a refit in a pass and of another beside it. 0 where nothing is reduced.
[[nodiscard]] Bytes auxiliary_bytes(const state::Layout& layout, std::size_t lanes, unsigned sums = 1);

}  // namespace spillway::plan
