#include "spillway/sys/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "spillway/base/error.h"

namespace spillway::sys {
namespace {

std::atomic<std::uint64_t> forks_so_far = 0;

/// Never destroyed: descriptors of static objects may be closed after it.
struct Descriptors {
  std::mutex mutex;  ///< held across every fork
  std::vector<int> open;
};

Descriptors& descriptors();

/// Only what may be called between fork and exec: other threads are gone, whatever they held is held.
void replace_all() noexcept {
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
    ::pthread_atfork([] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); }, replace_all);
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
  const std::lock_guard lock(all.mutex);
  all.open.reserve(all.open.size() + 1);
  const int descriptor = open();
  if (descriptor >= 0) all.open.push_back(descriptor);
  return descriptor;
}

void close_unforked(int descriptor, const std::function<void()>& close) noexcept {
  auto& all = descriptors();
  const std::lock_guard lock(all.mutex);
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
