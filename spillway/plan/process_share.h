// A machine as one of several processes on it sees it.
#pragma once

#include "spillway/machine/profile.h"

namespace spillway::plan {

/// Share of one of so many processes (> 0) that all work on a machine at once: equal parts of memory, CPUs, and the
/// rates and capacities of drives and network. Each has one of the GPUs, whose links are its own as far as memory does
/// not bound them together. DRAM is one tier; cards without CPUs are left out, since a run of several processes does
/// not tell nodes apart. The rates of a thread stay.
[[nodiscard]] machine::Profile process_share(machine::Profile profile, unsigned processes);

/// Bytes per second, each way, between processes of such a machine: copies in its memory by one thread, else what GPUs
/// move between each other. 0: nobody knows.
[[nodiscard]] double inside_rate(const machine::Profile& profile) noexcept;

}  // namespace spillway::plan
