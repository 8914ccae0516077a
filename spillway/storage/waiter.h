// One thread that waits for one transfer or request.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

namespace spillway::storage {

class Waiter {
 public:
  /// A Done whose context is the waiter.
  static void done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Waiter*>(context);
    const std::lock_guard lock(self.mutex_);
    self.ended_ = true;
    self.error_ = error;
    self.end_.notify_one();
  }

  /// Throws the error.
  void wait() {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return ended_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace spillway::storage
