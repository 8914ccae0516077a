// The end of a process whose libraries do not check their allocations, where its memory is bounded on purpose.
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway::sys {

/// While it lives, a crash (SIGSEGV, SIGBUS, SIGABRT) that finds the process without memory, so that not even
/// kProbe bytes can be mapped, ends the process with `code` after its words were written to standard error. Any other
/// crash goes to the handler that was there before. This is for a limit that the program has set itself (RLIMIT_DATA):
/// libraries that it calls dereference what malloc() did not give, and nothing can be thrown from there.
/// There is one at a time in a process; another throws Error(internal).
class OutOfMemoryExit {
 public:
  static constexpr std::size_t kMostWords = 480;  ///< bytes; what is longer is cut
  static constexpr std::size_t kProbe = std::size_t{2}
                                        << 20;  ///< bytes; malloc() asks for 1 MiB when the heap cannot grow

  OutOfMemoryExit(std::string_view words, int code);
  ~OutOfMemoryExit();  ///< puts the handlers back
  OutOfMemoryExit(const OutOfMemoryExit&) = delete;
  OutOfMemoryExit& operator=(const OutOfMemoryExit&) = delete;
};

}  // namespace spillway::sys
