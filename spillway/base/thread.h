// How threads of the engine begin.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

namespace spillway {

/// Throws the Error(io) that says why no thread was started.
[[noreturn]] void refuse_thread(const std::system_error& error);

/// A new thread that calls `body`, which does not throw. Throws Error(io) where the system lets this process have no
/// more: who starts several ends those before then, and joins them.
template <class Thread = std::thread, class Body>
[[nodiscard]] Thread start_thread(Body&& body) {
  try {
    return Thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    refuse_thread(error);
  }
}

}  // namespace spillway
