#include "tests/calls/tracer.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

namespace spillway::calls {

#ifdef __x86_64__
namespace {

namespace fs = std::filesystem;

/// How a call names its file.
enum class By : std::uint8_t {
  descriptor,  ///< first argument
  path,        ///< first argument
  at,          ///< directory in the first argument, path in the second
  path_last,   ///< second argument, a new name: link, symlink
  mapping,     ///< mmap
  nothing,     ///< a resource
};

struct Kind {
  const char* name;
  int number;
  By by;
  bool changes;  ///< a file, a name or what is durable
};

#define SPILLWAY_CALL(name, by, changes) \
  Kind {                                 \
#name, SYS_##name, By::by, changes   \
  }
constexpr std::array kKinds = {
    SPILLWAY_CALL(open, path, true),
    SPILLWAY_CALL(openat, at, true),
    SPILLWAY_CALL(creat, path, true),
    SPILLWAY_CALL(read, descriptor, false),
    SPILLWAY_CALL(pread64, descriptor, false),
    SPILLWAY_CALL(readv, descriptor, false),
    SPILLWAY_CALL(preadv, descriptor, false),
    SPILLWAY_CALL(write, descriptor, true),
    SPILLWAY_CALL(pwrite64, descriptor, true),
    SPILLWAY_CALL(writev, descriptor, true),
    SPILLWAY_CALL(pwritev, descriptor, true),
    SPILLWAY_CALL(fsync, descriptor, true),
    SPILLWAY_CALL(fdatasync, descriptor, true),
    SPILLWAY_CALL(sync_file_range, descriptor, true),
    SPILLWAY_CALL(ftruncate, descriptor, true),
    SPILLWAY_CALL(truncate, path, true),
    SPILLWAY_CALL(fallocate, descriptor, true),
    SPILLWAY_CALL(rename, path, true),
    SPILLWAY_CALL(renameat, at, true),
    SPILLWAY_CALL(renameat2, at, true),
    SPILLWAY_CALL(link, path_last, true),
    SPILLWAY_CALL(symlink, path_last, true),
    SPILLWAY_CALL(linkat, at, true),
    SPILLWAY_CALL(unlink, path, true),
    SPILLWAY_CALL(unlinkat, at, true),
    SPILLWAY_CALL(mkdir, path, true),
    SPILLWAY_CALL(mkdirat, at, true),
    SPILLWAY_CALL(rmdir, path, true),
    SPILLWAY_CALL(stat, path, false),
    SPILLWAY_CALL(lstat, path, false),
    SPILLWAY_CALL(fstat, descriptor, false),
    SPILLWAY_CALL(newfstatat, at, false),
    SPILLWAY_CALL(statx, at, false),
    SPILLWAY_CALL(statfs, path, false),
    SPILLWAY_CALL(fstatfs, descriptor, false),
    SPILLWAY_CALL(access, path, false),
    SPILLWAY_CALL(faccessat, at, false),
    SPILLWAY_CALL(faccessat2, at, false),
    SPILLWAY_CALL(chmod, path, true),
    SPILLWAY_CALL(fchmod, descriptor, true),
    SPILLWAY_CALL(fchmodat, at, true),
    SPILLWAY_CALL(utimensat, at, true),
    SPILLWAY_CALL(getdents64, descriptor, false),
    SPILLWAY_CALL(readlink, path, false),
    SPILLWAY_CALL(fcntl, descriptor, false),
    SPILLWAY_CALL(flock, descriptor, true),
    SPILLWAY_CALL(ioctl, descriptor, false),
    SPILLWAY_CALL(lseek, descriptor, false),
    SPILLWAY_CALL(fadvise64, descriptor, false),
    SPILLWAY_CALL(copy_file_range, descriptor, true),
    SPILLWAY_CALL(sendfile, descriptor, true),
    SPILLWAY_CALL(close, descriptor, true),
    SPILLWAY_CALL(mmap, mapping, false),
    SPILLWAY_CALL(clone, nothing, false),
    SPILLWAY_CALL(clone3, nothing, false),
    SPILLWAY_CALL(eventfd2, nothing, false),
    SPILLWAY_CALL(memfd_create, nothing, false),
    SPILLWAY_CALL(io_uring_setup, nothing, false),
    SPILLWAY_CALL(io_uring_enter, nothing, true),
    SPILLWAY_CALL(io_uring_register, nothing, false),
};
#undef SPILLWAY_CALL

constexpr std::uint64_t kSmallMapping = 64 * 1024;

const Kind* kind_of(std::uint64_t number) {
  const auto* it = std::ranges::find(kKinds, static_cast<int>(number), &Kind::number);
  return it == kKinds.end() ? nullptr : it;
}

/// Stops at the calls of the table, and lets all others through.
bool filter_calls() {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const auto& kind : kKinds) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(kind.number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// In the child: from its return on it is watched.
bool be_watched() {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return false;
  ::raise(SIGSTOP);
  return filter_calls();
}

std::string text_at(pid_t thread, std::uint64_t address) {
  std::string out;
  while (out.size() < 4096) {
    char part[256];
    const auto to_page_end = 4096 - (address & 4095);
    iovec here{part, std::min<std::size_t>(sizeof part, to_page_end)};
    iovec there{reinterpret_cast<void*>(address), here.iov_len};  // NOLINT(performance-no-int-to-ptr)
    const auto read = ::process_vm_readv(thread, &here, 1, &there, 1, 0);
    if (read <= 0) return out;
    const auto* end = std::find(part, part + read, '\0');
    out.append(static_cast<const char*>(part), end);
    if (end != part + read) return out;
    address += static_cast<std::uint64_t>(read);
  }
  return out;
}

std::string link_target(const std::string& link) {
  char target[4096];
  const auto length = ::readlink(link.c_str(), target, sizeof target);
  return length <= 0 ? std::string() : std::string(target, static_cast<std::size_t>(length));
}

std::string of_descriptor(pid_t thread, int descriptor) {
  const auto process = "/proc/" + std::to_string(thread);
  if (descriptor == AT_FDCWD) return link_target(process + "/cwd");
  return link_target(process + "/fd/" + std::to_string(descriptor));
}

std::string joined(pid_t thread, int directory, const std::string& path) {
  if (path.empty()) return of_descriptor(thread, directory);  // AT_EMPTY_PATH
  if (path.front() == '/') return fs::path(path).lexically_normal().string();
  return (fs::path(of_descriptor(thread, directory)) / path).lexically_normal().string();
}

/// Ends what does not end by itself. Counts its own seconds, so that a machine that was stopped does not count.
class Watchdog {
 public:
  Watchdog(pid_t process, unsigned seconds)
      : thread_([this, process, seconds] {
          std::unique_lock lock(mutex_);
          for (unsigned gone = 0; gone < seconds; ++gone) {
            if (ended_.wait_for(lock, std::chrono::seconds(1), [this] { return over_; })) return;
          }
          bitten_ = true;
          ::kill(process, SIGKILL);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  [[nodiscard]] bool bitten() {
    const std::lock_guard lock(mutex_);
    return bitten_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false, bitten_ = false;
  std::thread thread_;
};

class Tracer {
 public:
  Tracer(const Watch& watch, const Fault& fault, pid_t child, bool keep_log)
      : watch_(watch), fault_(fault), child_(child), keep_log_(keep_log) {}

  Outcome run() {
    int status = 0;
    if (::waitpid(child_, &status, __WALL) != child_ || !WIFSTOPPED(status)) {
      out_.untold = true;
      return out_;
    }
    const auto options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                         PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    ::ptrace(PTRACE_SETOPTIONS, child_, nullptr, reinterpret_cast<void*>(std::uintptr_t{options}));
    Watchdog watchdog(child_, watch_.patience);
    watched_.insert(child_);
    ::ptrace(PTRACE_CONT, child_, nullptr, nullptr);
    while (!ended_) wait();
    out_.hung = watchdog.bitten();
    return out_;
  }

 private:
  void wait() {
    int status = 0;
    const auto thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0) {
      ended_ = true;
      return;
    }
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      watched_.erase(thread);
      if (thread != child_) return;
      out_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      out_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      ended_ = true;
      for (const auto other : watched_) ::kill(other, SIGKILL);
      return;
    }
    go_on(thread, status);
  }

  void go_on(pid_t thread, int status) {
    const auto event = status >> 16;
    auto signal = WSTOPSIG(status);
    const bool is_new = watched_.insert(thread).second;
    if (event == PTRACE_EVENT_SECCOMP && !stop_at(thread)) return;
    if (event != 0 || (is_new && signal == SIGSTOP)) signal = 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    ::ptrace(PTRACE_CONT, thread, nullptr, reinterpret_cast<void*>(static_cast<std::uintptr_t>(signal)));
  }

  /// False when everything was killed.
  bool stop_at(pid_t thread) {
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) return true;
    const auto* kind = kind_of(registers.orig_rax);
    if (kind == nullptr) return true;
    if (!watch_.rings && kind->number == SYS_io_uring_setup) {
      refuse(thread, registers, ENOSYS);
      return true;
    }
    const auto path = counted(thread, *kind, registers);
    if (!path) return true;
    ++out_.calls;
    if (keep_log_) out_.log.push_back({kind->name, *path});
    if (out_.calls != fault_.number) return true;
    out_.reached = true;
    out_.at = {kind->name, *path};
    if (fault_.error != kKill) {
      refuse(thread, registers, error_of(kind->name, fault_.error));
      return true;
    }
    for (const auto other : watched_) ::kill(other, SIGKILL);
    return false;
  }

  static void refuse(pid_t thread, user_regs_struct& registers, int error) {
    registers.orig_rax = ~0ULL;
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(error));
    ::ptrace(PTRACE_SETREGS, thread, nullptr, &registers);
  }

  /// The file that it is about, empty for a resource; none: it does not count.
  std::optional<std::string> counted(pid_t thread, const Kind& kind, const user_regs_struct& registers) const {
    if (watch_.quiet_reads && !kind.changes) return std::nullopt;
    std::string path;
    switch (kind.by) {
      case By::descriptor:
        path = of_descriptor(thread, static_cast<int>(registers.rdi));
        break;
      case By::path:
        path = joined(thread, AT_FDCWD, text_at(thread, registers.rdi));
        break;
      case By::at:
        path = joined(thread, static_cast<int>(registers.rdi), text_at(thread, registers.rsi));
        break;
      case By::path_last:
        path = joined(thread, AT_FDCWD, text_at(thread, registers.rsi));
        break;
      case By::mapping:
        if ((registers.r10 & MAP_ANONYMOUS) != 0) return large_mapping(registers);
        path = of_descriptor(thread, static_cast<int>(registers.r8));
        break;
      case By::nothing:
        if (!watch_.resources) return std::nullopt;
        return std::string();
    }
    const bool ours = std::ranges::any_of(watch_.under, [&](const std::string& directory) {
      return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
    });
    return ours ? std::optional(path) : std::nullopt;
  }

  std::optional<std::string> large_mapping(const user_regs_struct& registers) const {
    if (!watch_.resources || registers.rsi < kSmallMapping) return std::nullopt;
    return std::string();
  }

  const Watch& watch_;
  const Fault fault_;
  const pid_t child_;
  const bool keep_log_;
  Outcome out_;
  std::set<pid_t> watched_;  ///< threads
  bool ended_ = false;
};

}  // namespace

Outcome traced(const Watch& watch, const Fault& fault, const std::function<int()>& body, bool keep_log) {
  std::fflush(nullptr);
  const auto child = ::fork();
  if (child == 0) {
    if (!be_watched()) ::_exit(77);
    int status = 70;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "it threw %s\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(status);
  }
  return Tracer(watch, fault, child, keep_log).run();
}

void watch_me(const Watch& watch, const Fault& fault, const std::string& report, bool keep_log) {
  std::fflush(nullptr);
  const auto child = ::fork();
  if (child == 0) {
    if (!be_watched()) ::_exit(77);
    return;
  }
  // The terminal's signals are for the child.
  for (const auto number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
  const auto outcome = Tracer(watch, fault, child, keep_log).run();
  std::ofstream to(report);
  for (const auto& call : outcome.log) to << "call " << call.name << ' ' << call.path << '\n';
  to << "calls " << outcome.calls << '\n';
  if (outcome.reached) to << "at " << outcome.at.name << ' ' << outcome.at.path << '\n';
  to.close();
  ::_exit(outcome.untold ? 77 : outcome.hung ? 111 : outcome.signal != 0 ? 128 + outcome.signal : outcome.code);
}

#else

Outcome traced(const Watch&, const Fault&, const std::function<int()>&, bool) {
  return {.untold = true};
}
void watch_me(const Watch&, const Fault&, const std::string&, bool) {
  ::_exit(77);
}

#endif

int error_of(const std::string& call, int error) {
  if (call == "clone" || call == "clone3") return EAGAIN;
  if (call == "mmap") return ENOMEM;
  return error;
}

bool is_flush(const std::string& call) {
  return call == "fsync" || call == "fdatasync";
}

}  // namespace spillway::calls
