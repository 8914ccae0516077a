// Why a volume that is there is not the one that was asked for.
#pragma once

#include <string>

#include "spillway/storage/superblock.h"

namespace spillway::storage {

/// What is wrong with a file that should be a volume of `run`, or nobody's: "belongs to run 'a'"; empty when nothing
/// is.
[[nodiscard]] std::string reason_against_owner(const SuperblockPair& there, const std::string& run);
/// Whether it is of the run and of a format that came before this build's: it may be made anew.
[[nodiscard]] bool is_older_of(const SuperblockPair& there, const std::string& run);
/// What keeps a volume from going on where it stopped: "is path 1 of 3 of its run, not path 0 of 2"; empty when nothing
/// does. `wanted` of less metadata is content with more; its capacity does not matter, for a volume can grow.
[[nodiscard]] std::string reason_against_reopening(const SuperblockPair& there, const Superblock& wanted,
                                                   Bytes file_size);

}  // namespace spillway::storage
