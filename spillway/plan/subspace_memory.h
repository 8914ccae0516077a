// DRAM that subspaces take beside the arena.
#pragma once

#include <cstddef>

#include "spillway/state/layout.h"

namespace spillway::plan {

/// Projectors of every matrix, twice (those before a step that learned new ones may be needed again), what is known of
/// their errors; the change of the largest S for each of `lanes` that update; and the work of learning one pair. 0
/// without subspaces.
[[nodiscard]] Bytes subspace_bytes(const state::Layout& layout, std::size_t lanes);

}  // namespace spillway::plan
