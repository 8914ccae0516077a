// Writes every byte of a range of a file once.
#pragma once

#include <functional>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

/// Writes zeros from `begin` to `end` (multiples of kDirectAlignment), with several pieces in flight, and does not
/// flush them. `progress`, if given, is called on the caller's thread after each piece, with the bytes done and to be
/// done; what it throws ends the work. Throws Error with errno and path.
void write_zeros(const sys::File& file, Bytes begin, Bytes end, const std::function<void(Bytes, Bytes)>& progress = {});

}  // namespace spillway::storage
