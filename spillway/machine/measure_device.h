// What can be found out about a block device without writing to it.
#pragma once

#include <filesystem>

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// The read rate of a block device, checksums included: whole pieces from its first GiB, again and again for about
/// `seconds`. Only reads, so it may hold anything and be in use; of a drive that was erased as a whole (TRIM) the rate
/// is too good. Writes stay unknown (0): only its owner may try them. So does everything where the device has less than
/// 64 MiB or no O_DIRECT of use (the page cache is not the drive). Throws Error(bad_input) when it is no block device
/// or may not be opened, Error(io) when it cannot be read.
[[nodiscard]] PathProfile measure_device(const std::filesystem::path& device, double seconds = 0.4);

}  // namespace spillway::machine
