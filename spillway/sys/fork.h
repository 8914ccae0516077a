// What a forked child does not get: locks, rings and memory of the process that forked it.
//
// A lock of a file belongs to the open file, which a forked child shares: a child that outlives its parent would keep
// the parent's storage paths locked. So descriptors that are opened here are replaced in every forked child by one that
// refuses every read, write and lock (EBADF) and keeps the number taken. Only fork() is looked after; what is executed
// (exec, posix_spawn) has no such descriptor anyway, since all are close-on-exec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

namespace spillway::sys {

/// Forks between this process and the one that loaded this library: 0 there, one more in each child. Any thread.
[[nodiscard]] std::uint64_t forks() noexcept;

/// Calls `open` while no other thread of this process can fork, and returns its descriptor, which no forked child gets.
/// A negative result is returned as it is, with errno. To be closed with close_unforked() alone.
[[nodiscard]] int open_unforked(const std::function<int()>& open);
/// In a forked child it closes what stands in the descriptor's place. `close`: how, where that is not close() alone.
void close_unforked(int descriptor, const std::function<void()>& close = {}) noexcept;

/// Leaves a range of whole pages out of forked children (MADV_DONTFORK). The kernel would copy registered pages there
/// and then, and those of a mapped file would keep it open.
void keep_from_children(std::span<std::byte> range) noexcept;

/// Throws Error(unsupported): a forked child uses what belongs to its parent.
[[noreturn]] void refuse_forked();

/// Owns what only the process that made it can use, since threads, descriptors and memory belong to it. In a forked
/// child every access throws Error(unsupported), and the destructor leaves the object alone.
template <class T>
class OfProcess {
 public:
  explicit OfProcess(std::unique_ptr<T> object) : object_(std::move(object)), forks_(forks()) {}
  ~OfProcess() {
    if (forks_ != forks()) std::ignore = object_.release();
  }
  OfProcess(const OfProcess&) = delete;
  OfProcess& operator=(const OfProcess&) = delete;

  [[nodiscard]] T* operator->() const { return &**this; }
  [[nodiscard]] T& operator*() const {
    if (forks_ != forks()) refuse_forked();
    return *object_;
  }

 private:
  std::unique_ptr<T> object_;
  std::uint64_t forks_;
};

}  // namespace spillway::sys
