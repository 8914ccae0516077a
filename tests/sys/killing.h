// Kills a process at one of its system calls, for tests of what it leaves.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>

namespace spillway::testing {

enum class Fate {
  killed,  ///< before the call took effect
  ended,   ///< well, with fewer calls
  failed,  ///< threw
  untold,  ///< this machine does not let one process watch another
};

/// Whether a call changes a file or a device.
inline bool changes_files(std::uint64_t call) {
  constexpr std::array<std::uint64_t, 10> kCalls = {SYS_pwrite64,  SYS_write,     SYS_fsync,    SYS_fdatasync,
                                                    SYS_fallocate, SYS_ftruncate, SYS_truncate, SYS_io_uring_enter,
                                                    SYS_ioctl,     SYS_rename};
  return std::ranges::find(kCalls, call) != kCalls.end();
}

/// Runs `body` in a forked child, up to its `count`-th system call (from 1) that changes a file.
template <class Body>
Fate killed_at(unsigned count, Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    try {
      body();
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return Fate::untold;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, reinterpret_cast<void*>(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  unsigned seen = 0;
  while (true) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? Fate::ended : Fate::failed;
    if (WIFSIGNALED(status)) return Fate::failed;
    __ptrace_syscall_info info{};
    const bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
    if (!call || ::ptrace(PTRACE_GET_SYSCALL_INFO, child, reinterpret_cast<void*>(sizeof info), &info) <= 0) continue;
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_files(info.entry.nr) || ++seen < count) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return Fate::killed;
  }
}

}  // namespace spillway::testing
