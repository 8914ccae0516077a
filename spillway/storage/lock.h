// The lock that keeps other runs from a volume.
#pragma once

#include <chrono>

#include "spillway/sys/file.h"

namespace spillway::storage {

/// Takes the advisory lock of an open file or device; false when it is still held after `patience`. Tools that look at
/// a device which was just closed lock it, too, and what a run that was killed had in flight holds its lock longer than
/// the run lived: both are worth waiting for. Where the process that has the lock is known to have ended, it is waited
/// for a minute more, since on a busy machine the kernel lets go late.
[[nodiscard]] bool lock_within(const sys::File& file, std::chrono::milliseconds patience);

}  // namespace spillway::storage
