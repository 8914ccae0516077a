#include "spillway/memory/room.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/sys/process.h"

namespace spillway::memory {
namespace {

/// "node 0 59.0 GiB, node 2 250 GiB"
std::string what_fits(const std::vector<sys::Node>& machine) {
  std::string out;
  for (const sys::Node& node : machine) {
    if (!node.has_memory() || !node.allowed) continue;
    out += text(out.empty() ? "" : ", ", "node ", node.id, " ", human(sys::takeable(node)));
  }
  return out;
}

}  // namespace

void require_room(std::span<const NodeBytes> parts, const std::vector<sys::Node>& machine, const std::string& what) {
  Bytes all = 0;
  for (const NodeBytes& part : parts) {
    const sys::Node& node = sys::find_node(machine, part.node);
    if (part.bytes > sys::takeable(node)) {
      throw Error(
          ErrorCode::does_not_fit,
          text("node ", node.id, " cannot hold ", human(part.bytes), " of ", what, ": of its ", human(node.total), ", ",
               human(node.available), " are free, and a margin is kept. What fits now: ", what_fits(machine)));
    }
    all += part.bytes;
  }
  require_room(all, what);
}

void require_room(Bytes bytes, const Placement& placement, const std::string& what) {
  if (placement.nodes.empty()) return require_room(bytes, what);
  const auto machine = sys::nodes();
  const Striping striping(placement, machine);
  placement.strict ? require_room(striping.shares(bytes), machine, what) : require_room(bytes, what);
}

void require_room(Bytes bytes, const std::string& what) {
  const Bytes there = sys::dram_facts().available;
  if (bytes <= there) return;
  throw Error(ErrorCode::does_not_fit, text(human(bytes), " of ", what, " do not fit: this process can take ",
                                            human(there), " more (of the machine, or by its cgroup)"));
}

}  // namespace spillway::memory
