// How a NUMA node is used, beside its budget.
#pragma once

namespace spillway::execute {

struct NodeOptions {
  bool pretended = false;  ///< not of this machine: its memory lies anywhere, its threads run anywhere
  double limit = 0;        ///< elements per second that its update lane is held down to; 0: none
};

}  // namespace spillway::execute
