// Fails one system call of a process, or kills the process there: what SQLite's tests do to their database.
//
// A process that is watched stops at each system call on files below some directories, and at those that ask the kernel
// for memory, threads, descriptors or rings. They are counted from 1, of all its threads and of the processes that it
// starts. One of them may be made to return an error without having taken place, or to be the last: there the process
// is killed, before the call has taken effect. It works on what the kernel is asked, whatever library asks it; needs
// ptrace and seccomp, and a CPU of the x86-64 family.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spillway::calls {

/// Stands for no error: the call is the last one.
inline constexpr int kKill = -1;

struct Fault {
  std::uint64_t number = 0;  ///< of the call; 0: none fails
  int error = kKill;         ///< errno that it returns; of calls that cannot fail so what they do fail with (error_of)
};

struct Watch {
  std::vector<std::string> under;  ///< directories, absolute: calls on files in them count
  bool resources = true;           ///< so do those that ask for memory (64 KiB or more), threads, descriptors and rings
  bool rings = true;               ///< false: io_uring is refused (ENOSYS) as on a kernel without it, and not counted
  bool quiet_reads = false;        ///< calls that change nothing do not count
  unsigned patience = 120;         ///< seconds after which it is taken to hang, and killed
};

struct Call {
  std::string name;  ///< "pwrite64"
  std::string path;  ///< of its file; empty: it has none
};

struct Outcome {
  int code = 0;    ///< exit status, if it ended by itself
  int signal = 0;  ///< that ended it
  bool hung = false;
  bool untold = false;      ///< this machine does not let one process watch another
  std::uint64_t calls = 0;  ///< that were counted
  bool reached = false;     ///< the fault's call
  Call at;                  ///< that one
  std::vector<Call> log;    ///< every call, when asked for
};

/// Runs `body` in a forked child, whose exit status is what it returns. The caller's process has no other threads.
[[nodiscard]] Outcome traced(const Watch& watch, const Fault& fault, const std::function<int()>& body,
                             bool keep_log = false);

/// The other half: forks, and returns in the child, which is watched from there on. The parent ends as the child does
/// (128 + signal where that was killed), 111 when it hung, 77 when it could not be watched, and says what happened by
/// lines in `report`: "calls N", "at NAME PATH", and with `keep_log` first every call.
void watch_me(const Watch& watch, const Fault& fault, const std::string& report, bool keep_log);

/// What a call of that name fails with where the errno is not one that it can have: mmap and clone never say EIO.
[[nodiscard]] int error_of(const std::string& call, int error);

/// Whether a call that has failed by it may not be passed over: what it should have made durable is not.
[[nodiscard]] bool is_flush(const std::string& call);

}  // namespace spillway::calls
