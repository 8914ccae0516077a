// The votes of processes of a run that are threads of one program: which step all of them have.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "spillway/engine.h"

namespace spillway::test {

/// Counts the votes of so many processes.
class Count {
 public:
  explicit Count(std::size_t size) : size_(size) {}

  /// The smallest of all; none: a process is gone.
  std::optional<std::int64_t> vote(std::int64_t step) {
    std::unique_lock lock(mutex_);
    smallest_ = std::min(smallest_, step);
    const auto round = round_;
    if (++arrived_ == size_) {
      result_ = std::exchange(smallest_, std::numeric_limits<std::int64_t>::max());
      arrived_ = 0;
      ++round_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return round_ != round || lost_; });
    return round_ != round ? std::optional(result_) : std::nullopt;
  }

  /// A process is gone, and nobody waits for it.
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    all_.notify_all();
  }

 private:
  const std::size_t size_;
  std::mutex mutex_;
  std::condition_variable all_;
  std::size_t arrived_ = 0, round_ = 0;
  bool lost_ = false;
  std::int64_t smallest_ = std::numeric_limits<std::int64_t>::max(), result_ = 0;
};

/// Votes for an engine until it is closed, which the destructor does.
class Voter {
 public:
  Voter(Engine& engine, Count& count)
      : engine_(engine), thread_([&engine, &count] {
          while (const auto step = engine.next_vote()) {
            const auto all = count.vote(*step);
            engine.end_vote(*step, all.value_or(0), all ? "" : "a process is gone");
          }
        }) {}
  ~Voter() {
    try {
      engine_.close();
    } catch (const Error&) {  // what matters was thrown before
    }
    thread_.join();
  }
  Voter(const Voter&) = delete;
  Voter& operator=(const Voter&) = delete;

 private:
  Engine& engine_;
  std::thread thread_;
};

}  // namespace spillway::test
