// The way out for a person whose first signal did not help: the program may wait for a drive that does not answer.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace spillway::sys {

/// While it lives, the first of `signals` goes to the handler that was there before, and the second ends the process
/// from inside the handler, whatever its threads are doing: it writes its words to standard error and exits with 128 +
/// the signal's number. A signal that is ignored stays so. One at a time in a process; another throws Error(internal).
class SecondSignal {
 public:
  static constexpr std::size_t kMostWords = 480;  ///< bytes; what is longer is cut

  SecondSignal(std::span<const int> signals, std::string_view words);
  ~SecondSignal();  ///< puts the handlers back
  SecondSignal(const SecondSignal&) = delete;
  SecondSignal& operator=(const SecondSignal&) = delete;

  /// What is written from now on. From one thread.
  void say(std::string_view words) noexcept;
};

}  // namespace spillway::sys
