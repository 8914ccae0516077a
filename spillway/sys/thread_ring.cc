#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/base/thread.h"
#include "spillway/sys/ring.h"
#include "spillway/sys/thread.h"

namespace spillway::sys {
namespace {

constexpr unsigned kMostThreads = 32;

class ThreadRing final : public Ring {
 public:
  ThreadRing(const File& file, unsigned depth) : fd_(file.fd()), queue_(depth) {
    completed_.reserve(depth);
    const unsigned threads = std::min(depth, kMostThreads);
    workers_.reserve(threads);
    try {
      while (workers_.size() < threads) workers_.push_back(start_thread([this] { serve(); }));
    } catch (...) {  // fewer serve as well
      if (!workers_.empty()) return;
      throw;
    }
  }

  ~ThreadRing() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  ThreadRing(const ThreadRing&) = delete;
  ThreadRing& operator=(const ThreadRing&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return "thread pool"; }

  std::string register_memory(std::span<std::byte> /*memory*/) override { return {}; }

  void submit(const Piece& piece) override {
    {
      const MutexLock lock(mutex_);
      queue_[(head_ + queued_++) % queue_.size()] = piece;
    }
    work_.notify_one();
  }

  void flush() override {}

  std::size_t wait(std::span<Completion> out) override {
    MutexLock lock(mutex_);
    while (!woken_ && completed_.empty()) ended_.wait(lock);
    woken_ = false;
    const std::size_t count = std::min(out.size(), completed_.size());
    const auto last = completed_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(completed_.begin(), last, out.begin());
    completed_.erase(completed_.begin(), last);
    return count;
  }

  void wake() noexcept override {
    const MutexLock lock(mutex_);
    woken_ = true;
    ended_.notify_one();
  }

 private:
  void serve() {
    enter_service_thread("spillway-io");
    MutexLock lock(mutex_);
    while (true) {
      while (!stopping_ && queued_ == 0) work_.wait(lock);
      if (queued_ == 0) return;
      const Piece piece = queue_[head_];
      head_ = (head_ + 1) % queue_.size();
      --queued_;
      lock.unlock();
      const Completion completion{piece.tag, move(piece)};
      lock.lock();
      completed_.push_back(completion);
      ended_.notify_one();
    }
  }

  /// One call, as io_uring would make it: errors and short transfers are the caller's to judge.
  [[nodiscard]] std::int32_t move(const Piece& piece) const noexcept {
    const ssize_t result = call(piece);
    return result < 0 ? -errno : static_cast<std::int32_t>(result);
  }

  [[nodiscard]] ssize_t call(const Piece& piece) const noexcept {
    const auto offset = static_cast<off_t>(piece.offset);
    switch (piece.operation) {
      case Operation::read:
        return ::pread(fd_, piece.memory, piece.bytes, offset);
      case Operation::write:
        return ::pwrite(fd_, piece.memory, piece.bytes, offset);
      case Operation::sync:
        return ::fdatasync(fd_);
    }
    errno = EINVAL;
    return -1;
  }

  int fd_;
  Mutex mutex_;
  Condition work_;                                        ///< a piece was queued, or we stop
  Condition ended_;                                       ///< a piece completed, or `wake`
  std::vector<Piece> queue_ SPILLWAY_GUARDED_BY(mutex_);  ///< circular: `queued_` pieces from `head_` on
  std::size_t head_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::size_t queued_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::vector<Completion> completed_ SPILLWAY_GUARDED_BY(mutex_);
  bool woken_ SPILLWAY_GUARDED_BY(mutex_) = false;
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Ring> make_thread_ring(const File& file, unsigned depth) {
  return std::make_unique<ThreadRing>(file, depth);
}

}  // namespace spillway::sys
