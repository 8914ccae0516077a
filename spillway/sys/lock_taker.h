// Who has the lock of a file.
#pragma once

#include "spillway/sys/file.h"

namespace spillway::sys {

/// Whether the process that took the lock of this file (File::lock) has ended, so that the kernel is about to let go of
/// it. False where none has it, and where that cannot be told (/proc/locks does not name it: in a container, say).
[[nodiscard]] bool is_locked_by_the_dead(const File& file);

}  // namespace spillway::sys
