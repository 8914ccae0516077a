// What this process holds in DRAM, and how much more it may take.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::sys {

struct ProcessMemory {
  Bytes resident = 0;       ///< now (VmRSS)
  Bytes peak_resident = 0;  ///< highest since the start or the last reset (VmHWM)
};

/// Throws Error(unsupported) where /proc is not mounted.
[[nodiscard]] ProcessMemory process_memory();
/// Starts VmHWM anew from the present; false when the kernel does not let us.
[[nodiscard]] bool reset_peak_resident() noexcept;

/// The tightest memory limit of the process's cgroups (v1 or v2, the group itself and those around it).
struct GroupMemory {
  Bytes limit = 0;     ///< bytes the group may hold
  Bytes headroom = 0;  ///< of these, not in use now; page cache that the kernel would give back counts as free
};

struct DramFacts {
  Bytes total = 0;                   ///< of the machine, or the group's limit where that is less
  Bytes available = 0;               ///< what can be taken now without swapping or being killed
  std::optional<GroupMemory> group;  ///< none: no cgroup limits this process
};

/// Throws Error(unsupported) where /proc is not mounted.
[[nodiscard]] DramFacts dram_facts();

/// The facts that are read below `root` ("" is the real machine; tests hand a tree of their own).
[[nodiscard]] DramFacts dram_facts_below(const std::string& root);

}  // namespace spillway::sys
