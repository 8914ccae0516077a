// The nodes that a test can have memory of.
#pragma once

#include <vector>

#include "spillway/sys/nodes.h"

namespace spillway::testing {

[[nodiscard]] inline std::vector<int> usable_nodes() {
  std::vector<int> out;
  for (const sys::Node& node : sys::nodes()) {
    if (node.has_memory() && node.allowed && sys::takeable(node) > 0) out.push_back(node.id);
  }
  return out;
}

}  // namespace spillway::testing
