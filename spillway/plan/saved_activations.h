// Which layers keep what autograd saves of them, and what that takes of the caller's memory.
#pragma once

#include <span>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Blocks of `saved` that keep when `layers` do, ascending: the last of those that have a backward pass, since the last
/// layers hold theirs for the shortest time. More layers than these: all of them.
[[nodiscard]] std::vector<Index> keeping_blocks(const state::Layout& layout, const SavedActivations& saved,
                                                std::size_t layers);
/// How many layers can keep, at most.
[[nodiscard]] std::size_t most_keeping(const state::Layout& layout, const SavedActivations& saved);

/// Bytes that so many layers keep of the largest step.
[[nodiscard]] Bytes saved_bytes(const Description& description, const SavedActivations& saved, std::size_t layers);
/// `budget` with a working set of PyTorch, on the host or on the device, that has these bytes, too.
[[nodiscard]] Budget with_saved(const Description& description, const Budget& budget, std::size_t layers);

/// Says of the passes of these blocks that they keep.
void set_saved(Schedule& schedule, std::span<const Index> blocks);

}  // namespace spillway::plan
