// The profile of this machine: facts, and the rates that a plan needs, measured in a second or two.
#pragma once

#include <filesystem>
#include <span>

#include "spillway/machine/calibrate.h"
#include "spillway/machine/profile.h"

namespace spillway::machine {

/// Facts, the rate of such an update, and the rates of each of `places`, which are directories or block devices, about
/// `seconds` for each figure, of a slow path up to five times that. Paths are named by their place in the list. A
/// directory is measured in a volume of its own, in a new folder, which is gone afterwards; with less than 2 GiB free
/// there its rates stay 0 (unknown). A block device is only read (measure_device.h): its other rates stay 0. What lies
/// on one drive is measured once, in a directory if there is one, and shares what was found. Takes 96 to 512 MiB of
/// memory while it runs, twice the cache, but not more than `most_memory`. Throws what a path throws.
[[nodiscard]] Profile measure(std::span<const std::filesystem::path> places, double seconds = 0.4,
                              const UpdateKind& kind = {}, Bytes most_memory = ~Bytes{0});

}  // namespace spillway::machine
