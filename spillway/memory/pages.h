// Where the pages of memory lie, and how they come to lie elsewhere.
//
// Ranges may begin and end anywhere; pages that they share with other memory count and move as theirs. A byte of a
// range that is moved stays readable and writable all the while, and keeps its value.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/memory/placement.h"

namespace spillway::memory {

/// Bytes of the range on each node, by rising node, as the kernel says page by page; sys::kAbsent, first, for those not
/// in memory (never touched, swapped out). Nodes without any are left out. Throws Error(unsupported) where the kernel
/// may not be asked and there is more than one node.
[[nodiscard]] std::vector<NodeBytes> where(std::span<const std::byte> range);

/// First touch of pages that nobody has touched yet, each by a thread on CPUs near its node, several at once;
/// then each page is asked for and, if it lies elsewhere, moved. The range begins on a page. Where the placement is
/// strict, throws Error(does_not_fit) when room is missing, before anything is touched, or when pages still lie
/// elsewhere; no number of bytes makes the kernel end the process as MPOL_BIND would. `what` names the memory in
/// messages. Throws Error(unsupported) where this process may not place memory and the machine has more than one node.
void place(std::span<std::byte> range, const Placement& placement, bool huge_pages = true,
           const std::string& what = "memory");

/// Moves what is in memory, and sees that it has moved. Pages that are not there stay away. Huge pages are split when
/// the pieces are smaller. Throws as `place` does; then everything lies where it lay, as far as the kernel lets it.
void move(std::span<std::byte> range, const Placement& placement);

}  // namespace spillway::memory
