// One thread that waits for one transfer or request.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>

#include "spillway/base/mutex.h"

namespace spillway::storage {

class Waiter {
 public:
  /// A Done whose context is the waiter.
  static void done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Waiter*>(context);
    const MutexLock lock(self.mutex_);
    self.ended_ = true;
    self.error_ = error;
    self.end_.notify_one();
  }

  /// Whether it has ended; waits for that as long.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds time) {
    MutexLock lock(mutex_);
    if (!ended_) end_.wait_for(lock, time);
    return ended_;
  }
  /// Throws the error.
  void wait() {
    MutexLock lock(mutex_);
    while (!ended_) end_.wait(lock);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  Mutex mutex_;
  Condition end_;
  bool ended_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ SPILLWAY_GUARDED_BY(mutex_);
};

}  // namespace spillway::storage
