// Writes every byte of a range of a file once.
#pragma once

#include <functional>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

/// Zeros from `begin` to `end` (multiples of kDirectAlignment), with several pieces in flight; not flushed. `progress`,
/// if given, is called on the caller's thread after each piece, with the bytes done and to be done; what it throws ends
/// the work. Errors throw Error with errno and path.
void write_zeros(const sys::File& file, Bytes begin, Bytes end, const std::function<void(Bytes, Bytes)>& progress = {});

}  // namespace spillway::storage
