#include "spillway/sys/out_of_memory_exit.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {
namespace {

constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGABRT};

/// All that the handler reads.
struct Ending {
  std::atomic<bool> alive = false;
  std::array<char, OutOfMemoryExit::kMostWords> words{};
  std::size_t count = 0;
  int code = 0;
  std::array<struct sigaction, kCrashes.size()> before{};
};

Ending ending;

bool without_memory() {
  void* const there =
      ::mmap(nullptr, OutOfMemoryExit::kProbe, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (there == MAP_FAILED) return errno == ENOMEM;
  static_cast<void>(::munmap(there, OutOfMemoryExit::kProbe));
  return false;
}

void give_back() noexcept {
  for (std::size_t i = 0; i < kCrashes.size(); ++i) {
    static_cast<void>(::sigaction(kCrashes[i], &ending.before[i], nullptr));
  }
  ending.alive = false;
}

/// A fault for another reason happens again when this returns; what was raised is raised again.
void handle_crash(int number, siginfo_t* info, void* /*context*/) {
  const int kept = errno;
  if (without_memory()) {
    static_cast<void>(!::write(STDERR_FILENO, ending.words.data(), ending.count));
    ::_exit(ending.code);
  }
  give_back();
  if (info->si_code <= 0) static_cast<void>(::raise(number));
  errno = kept;
}

}  // namespace

OutOfMemoryExit::OutOfMemoryExit(std::string_view words, int code) {
  if (ending.alive.exchange(true)) throw Error(ErrorCode::internal, "two wait for the memory to end");
  ending.count = std::min(words.size(), ending.words.size());
  std::copy_n(words.data(), ending.count, ending.words.data());
  ending.code = code;
  struct sigaction ours {};
  ours.sa_sigaction = handle_crash;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t i = 0; i < kCrashes.size(); ++i) {
    if (::sigaction(kCrashes[i], nullptr, &ending.before[i]) != 0) {
      ending.alive = false;
      throw_errno(errno, text("handle signal ", kCrashes[i]), {});
    }
  }
  for (const int number : kCrashes) static_cast<void>(::sigaction(number, &ours, nullptr));
}

OutOfMemoryExit::~OutOfMemoryExit() {
  if (ending.alive) give_back();
}

}  // namespace spillway::sys
