// What a machine says of itself without being measured.
#pragma once

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// A profile with cores and DRAM, everything else unknown. Cores are those this process may run on (affinity and
/// cgroup; of a quota the whole ones, one at least); throws Error(unsupported) when the topology or /proc cannot
/// be read.
[[nodiscard]] Profile facts();

}  // namespace spillway::machine
