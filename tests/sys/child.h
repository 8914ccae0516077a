// Runs something in a process of its own, for tests that change the process itself (mounts, filters).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <exception>

namespace spillway::testing {

/// Exit status by which a child says that this machine does not let it try.
inline constexpr int kCannotTry = 77;

/// What `body` returns, as the exit status of a forked child; 70 when it throws, -1 when it is killed.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 70;
    try {
      status = body();
    } catch (const std::exception&) {
    }
    ::_exit(status);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace spillway::testing
