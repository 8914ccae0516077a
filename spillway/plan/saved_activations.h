// Which layers keep or spill what autograd saves of them, and what that takes of memory and paths.
#pragma once

#include <vector>

#include "spillway/plan/decisions.h"
#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Blocks of `saved` that keep when `layers` do, ascending: the last of those that have a backward pass, since the last
/// layers hold theirs for the shortest time. More layers than these: all of them.
[[nodiscard]] std::vector<Index> keeping_blocks(const state::Layout& layout, const SavedActivations& saved,
                                                std::size_t layers);
/// Blocks that spill beside those that keep, ascending: from the first layer on evenly among the ones before these, so
/// that the paths are busy all along, and have the longest time where they can. More layers than these: all of them.
[[nodiscard]] std::vector<Index> spilling_blocks(const state::Layout& layout, const SavedActivations& saved,
                                                 const SavedLayers& layers);
/// How many layers can keep or spill, at most.
[[nodiscard]] std::size_t most_keeping(const state::Layout& layout, const SavedActivations& saved);

/// Bytes that so many layers keep of the largest step.
[[nodiscard]] Bytes saved_bytes(const Description& description, const SavedActivations& saved, std::size_t layers);
/// Bytes that such layers hold in the caller's memory: those that keep all of it, those that spill their graph alone.
[[nodiscard]] Bytes held_bytes(const Description& description, const SavedActivations& saved,
                               const SavedLayers& layers);
/// Bytes that each layer which spills moves in the largest step, once each way.
[[nodiscard]] Bytes spilled_bytes(const Description& description, const SavedActivations& saved);
/// Placement of the saved activations of each layer.
[[nodiscard]] SavedPlacement saved_placement(const Description& description, const state::Layout& layout,
                                             const SavedActivations& saved, const SavedLayers& layers);

}  // namespace spillway::plan
