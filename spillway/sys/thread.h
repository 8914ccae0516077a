// What every service thread of the engine does first.
#pragma once

#include <string>

namespace spillway::sys {

/// Names the calling thread (cut to 15 characters) and blocks all signals in it, so that Ctrl-C and SIGTERM reach the
/// thread that Python handles them on.
void enter_service_thread(const std::string& name) noexcept;

/// The calling thread gets CPUs after all others of usual priority, as far as they are wanted.
void lower_priority() noexcept;

/// CPU seconds, user and system, the process has used so far.
[[nodiscard]] double process_cpu_seconds() noexcept;

}  // namespace spillway::sys
