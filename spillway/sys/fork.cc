#include "spillway/sys/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/base/mutex.h"

namespace spillway::sys {
namespace {

std::atomic<std::uint64_t> forks_so_far = 0;

/// Never destroyed: descriptors of static objects may be closed after it.
struct Descriptors {
  Mutex mutex;  ///< held across every fork
  std::vector<int> open SPILLWAY_GUARDED_BY(mutex);
};

Descriptors& descriptors();

// The mutex is locked before a fork, and unlocked by the parent and the child after it.

void before_fork() noexcept SPILLWAY_UNVERIFIED {
  descriptors().mutex.lock();
}

void after_fork() noexcept SPILLWAY_UNVERIFIED {
  descriptors().mutex.unlock();
}

/// Calls only what may be called between fork and exec: other threads are gone, whatever they held is held.
void replace_all() noexcept SPILLWAY_UNVERIFIED {
  forks_so_far.fetch_add(1, std::memory_order_relaxed);
  auto& all = descriptors();
  const int nothing = all.open.empty() ? -1 : ::open("/", O_PATH | O_CLOEXEC);
  for (const int descriptor : all.open) {
    if (nothing < 0 || ::dup3(nothing, descriptor, O_CLOEXEC) < 0) ::close(descriptor);
  }
  if (nothing >= 0) ::close(nothing);
  all.open.clear();
  all.mutex.unlock();
}

Descriptors& descriptors() {
  static auto* const all = [] {
    ::pthread_atfork(before_fork, after_fork, replace_all);
    return new Descriptors;
  }();
  return *all;
}

/// From the start, so that a child that was forked before anything was opened counts, too.
[[maybe_unused]] const auto& watching = descriptors();

}  // namespace

std::uint64_t forks() noexcept {
  return forks_so_far.load(std::memory_order_relaxed);
}

int open_unforked(const std::function<int()>& open) {
  auto& all = descriptors();
  const MutexLock lock(all.mutex);
  all.open.reserve(all.open.size() + 1);
  const int descriptor = open();
  if (descriptor >= 0) all.open.push_back(descriptor);
  return descriptor;
}

void close_unforked(int descriptor, const std::function<void()>& close) noexcept {
  auto& all = descriptors();
  const MutexLock lock(all.mutex);
  std::erase(all.open, descriptor);
  close ? close() : static_cast<void>(::close(descriptor));
}

void keep_from_children(std::span<std::byte> range) noexcept {
  if (!range.empty()) ::madvise(range.data(), range.size(), MADV_DONTFORK);
}

void refuse_forked() {
  throw Error(
      ErrorCode::unsupported,
      "this process was forked from the one that has the engine, and has none of its memory, threads and files; "
      "use the engine in the process that made it (in workers of data loaders: data alone)");
}

}  // namespace spillway::sys
