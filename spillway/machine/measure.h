// The profile of this machine: facts, and the rates that a plan needs, measured in a second or two.
#pragma once

#include <filesystem>

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// Facts, update rate, and for a non-empty `directory` the rates of a path there, about `seconds` for each of four
/// figures. The path is measured in a volume of its own, in a new folder of `directory`, which is gone afterwards; with
/// less than 2 GiB free there its rates stay 0 (unknown). Takes 96 MiB of memory while it runs. Throws what the path
/// throws.
[[nodiscard]] Profile measure(const std::filesystem::path& directory, double seconds = 0.4);

}  // namespace spillway::machine
