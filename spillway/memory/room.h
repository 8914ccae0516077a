// Whether nodes can hold what is asked of them, looked up before the kernel would end the process over it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "spillway/memory/placement.h"
#include "spillway/sys/nodes.h"

namespace spillway::memory {

/// Throws Error(does_not_fit) with the node, the bytes asked, those there and what would fit, when a node cannot take
/// its part (sys::takeable) or the process not all of it. `what` names it in the message ("a tensor"). Others may take
/// the memory between this look and the use, which is why places are verified as well.
void require_room(std::span<const NodeBytes> parts, const std::vector<sys::Node>& machine, const std::string& what);
/// Requires room for `bytes` that are placed so on this machine; without nodes, or where the placement is not strict,
/// it does what the next one does.
void require_room(Bytes bytes, const Placement& placement, const std::string& what);
/// Requires room for what may lie anywhere: as much as the process can take, of the machine and by its cgroup.
void require_room(Bytes bytes, const std::string& what);

}  // namespace spillway::memory
