// The profile of this machine: facts, and the rates that a plan needs, measured in a second or two.
#pragma once

#include <filesystem>
#include <span>

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// Facts, update rate, and the rates of a storage path in each of `directories`, about `seconds` for each figure. Paths
/// are named by their place in the list. A path is measured in a volume of its own, in a new folder of the directory,
/// which is gone afterwards; with less than 2 GiB free there its rates stay 0 (unknown). Directories of one file system
/// are measured once and share what was found. Takes 96 MiB of memory while it runs. Throws what a path throws.
[[nodiscard]] Profile measure(std::span<const std::filesystem::path> directories, double seconds = 0.4);

}  // namespace spillway::machine
