// The lock that keeps other runs from a volume.
#pragma once

#include <chrono>

#include "spillway/sys/file.h"

namespace spillway::storage {

/// Takes the advisory lock of an open file or device; false when it is still held after `patience`. What a run that was
/// killed had in flight holds its lock a moment longer than the run lived, and tools that look at a device which was
/// just closed lock it, too: both are worth waiting for.
[[nodiscard]] bool lock_within(const sys::File& file, std::chrono::milliseconds patience);

}  // namespace spillway::storage
