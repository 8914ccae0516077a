#include "spillway/machine/compute_load.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "spillway/base/thread.h"

namespace spillway::machine {
namespace {

constexpr unsigned kRounds = 400'000;  // of a part: some four cycles each

/// Something to do that no compiler leaves out.
std::uint64_t arithmetic(std::uint64_t x) {
  for (unsigned i = 0; i < kRounds; ++i) x = x * 6364136223846793005U + 1442695040888963407U;
  return x;
}

class BusyThreads {
 public:
  explicit BusyThreads(unsigned threads) : together_(threads) {
    threads_.reserve(threads);
    try {
      for (unsigned t = 0; t < threads; ++t) threads_.push_back(start_thread([this, t] { run(t); }));
    } catch (...) {
      for (auto t = threads_.size(); t < threads; ++t) together_.arrive_and_drop();
      stop();
      throw;
    }
  }
  ~BusyThreads() { stop(); }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;

  [[nodiscard]] std::uint64_t parts() const noexcept { return parts_; }

 private:
  void stop() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
  }
  void run(unsigned number) {
    std::uint64_t x = number;
    // The first one decides for all, so that none waits for one that has left.
    for (bool go = true; go;) {
      x = arithmetic(x);
      if (number == 0) {
        ++parts_;
        last_ = stop_;
      }
      together_.arrive_and_wait();
      go = !last_;
      together_.arrive_and_wait();  // before the first one writes `last_` again
    }
    sum_ += x;
  }

  std::barrier<> together_;
  std::atomic<bool> stop_{false};
  bool last_ = false;
  std::atomic<std::uint64_t> parts_{0}, sum_{0};
  std::vector<std::thread> threads_;
};

}  // namespace

double parts_per_second(unsigned threads, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const BusyThreads busy(threads);
  const auto before = busy.parts();
  const auto began = Clock::now();
  work();
  const std::chrono::duration<double> passed = Clock::now() - began;
  return static_cast<double>(busy.parts() - before) / passed.count();
}

double share_beside(unsigned threads, double seconds, const std::function<void()>& work) {
  const auto alone =
      parts_per_second(threads, [&] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  const auto beside = parts_per_second(threads, work);
  return alone > 0 ? std::min(1.0, beside / alone) : 1;
}

}  // namespace spillway::machine
