// These options say how a tier of host memory is used, beside its budget.
#pragma once

#include <optional>

#include "spillway/memory/backing.h"

namespace spillway::execute {

struct NodeOptions {
  std::optional<memory::Backing> backing = {};  ///< what it is made of; empty: the NUMA node that its budget names
  double limit = 0;                             ///< elements per second that its update lane is held down to; 0: none
};

}  // namespace spillway::execute
