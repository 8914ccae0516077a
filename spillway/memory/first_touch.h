// Faults pages in, each from the right place.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/memory/placement.h"
#include "spillway/sys/nodes.h"

namespace spillway::memory {

/// Touches every page of the range: those of a node by threads that run on its nearest CPUs and prefer memory of
/// that node. Pages that are there stay. Up to `threads` at once (0: as many as CPUs are near).
void first_touch(std::span<std::byte> range, const Striping& striping, const std::vector<sys::Node>& machine,
                 unsigned threads = 0);

}  // namespace spillway::memory
