// Seconds since a beginning: what the times of tasks are told in.
#pragma once

#include <chrono>
#include <thread>

namespace spillway::execute {

class Clock {
 public:
  [[nodiscard]] double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count();
  }
  void sleep_until(double seconds) const {
    std::this_thread::sleep_until(epoch_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                               std::chrono::duration<double>(seconds)));
  }

 private:
  std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
};

}  // namespace spillway::execute
