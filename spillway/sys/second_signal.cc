#include "spillway/sys/second_signal.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {
namespace {

struct Words {
  std::array<char, SecondSignal::kMostWords> bytes{};
  std::size_t count = 0;
};

/// All that the handler reads. One pair of words is being written while it may read the other.
struct Watch {
  std::atomic<bool> alive = false;
  std::atomic<int> seen = 0;
  std::array<Words, 2> words;
  std::atomic<unsigned> current = 0;
  std::array<struct sigaction, NSIG> before{};
  std::array<bool, NSIG> taken{};
};

Watch watch;

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<unsigned>::is_always_lock_free);

[[noreturn]] void leave(int number) {
  const Words& words = watch.words[watch.current.load()];
  static_cast<void>(!::write(STDERR_FILENO, words.bytes.data(), words.count));
  ::_exit(128 + number);
}

void pass_on(int number, siginfo_t* info, void* context) {
  const struct sigaction& before = watch.before[static_cast<std::size_t>(number)];
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL) return before.sa_handler(number);
  static_cast<void>(::sigaction(number, &before, nullptr));
  static_cast<void>(::raise(number));  // when this handler returns
}

void handle(int number, siginfo_t* info, void* context) {
  const int kept = errno;
  if (watch.seen.fetch_add(1) > 0) leave(number);
  pass_on(number, info, context);
  errno = kept;
}

bool is_ignored(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

void take(int number) {
  const auto at = static_cast<std::size_t>(number);
  struct sigaction& before = watch.before.at(at);
  if (::sigaction(number, nullptr, &before) != 0) throw_errno(errno, text("handle signal ", number), {});
  if (is_ignored(before)) return;
  struct sigaction ours = before;
  ours.sa_flags = (before.sa_flags & ~static_cast<int>(SA_RESTART | SA_RESETHAND)) | SA_SIGINFO;
  ours.sa_sigaction = handle;
  static_cast<void>(::sigaction(number, &ours, nullptr));
  watch.taken[at] = true;
}

void give_back() noexcept {
  for (std::size_t at = 0; at < watch.taken.size(); ++at) {
    if (watch.taken[at]) static_cast<void>(::sigaction(static_cast<int>(at), &watch.before[at], nullptr));
    watch.taken[at] = false;
  }
  watch.alive = false;
}

}  // namespace

SecondSignal::SecondSignal(std::span<const int> signals, std::string_view words) {
  if (watch.alive.exchange(true)) throw Error(ErrorCode::internal, "two wait for the second signal");
  watch.seen = 0;
  say(words);
  try {
    for (const int number : signals) take(number);
  } catch (...) {
    give_back();
    throw;
  }
}

SecondSignal::~SecondSignal() {
  give_back();
}

void SecondSignal::say(std::string_view words) noexcept {
  const unsigned other = 1 - watch.current.load();
  Words& room = watch.words[other];
  room.count = std::min(words.size(), room.bytes.size());
  std::copy_n(words.data(), room.count, room.bytes.data());
  watch.current = other;
}

}  // namespace spillway::sys
