// A block device that a volume may be made on.
#pragma once

#include <filesystem>

#include "spillway/sys/file.h"

namespace spillway::storage {

/// Opens the device for this process alone, with O_DIRECT. It is empty, or begins with a volume, of whose superblock
/// one copy is enough: whose it is, that says. Anything else (a file system, a partition table, bytes of an unknown
/// kind) is refused, and with `erase` removed. Throws Error(bad_input) naming what was found and what to change; a
/// device that is read-only, that is in use (mounted, or a part of it; swap; part of another device; open by another
/// run), or that has blocks larger than kDirectAlignment, is refused whatever `erase` says.
[[nodiscard]] sys::File open_block_device(const std::filesystem::path& path, bool erase);

}  // namespace spillway::storage
