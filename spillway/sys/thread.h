// What every service thread of the engine does first.
#pragma once

#include <string>

namespace spillway::sys {

/// Names the calling thread (cut to 15 characters) and blocks all signals in it, so that Ctrl-C and SIGTERM reach the
/// thread that Python handles them on.
void enter_service_thread(const std::string& name) noexcept;

/// Adds to the calling thread's nice value, up to 19: it gets CPUs after threads with a smaller one, as far as these
/// want them.
void lower_priority(int nice) noexcept;

/// The CPU that the calling thread runs on now; -1: the kernel does not say.
[[nodiscard]] int current_cpu() noexcept;

/// CPU seconds, user and system, the process has used so far.
[[nodiscard]] double process_cpu_seconds() noexcept;

}  // namespace spillway::sys
