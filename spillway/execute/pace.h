// Work held down to a rate, as by memory that gives no more.
//
// For tests and benchmarks: a node of a machine that is not there, with the real kernels and buffers.
#pragma once

#include <algorithm>

namespace spillway::execute {

/// Seconds of any clock. Not for several threads at once.
class Pace {
 public:
  explicit Pace(double per_second = 0) noexcept : per_second_(per_second) {}  ///< 0: as fast as it goes

  [[nodiscard]] bool limits() const noexcept { return per_second_ > 0; }

  /// When `amount` that began at `begin` may end. Who comes late by a little (sleepers do) catches up.
  [[nodiscard]] double end(double begin, double amount) noexcept {
    free_ = std::max(free_, begin - kLate) + amount / per_second_;
    return free_;
  }

 private:
  static constexpr double kLate = 1e-3;
  double per_second_;
  double free_ = 0;
};

}  // namespace spillway::execute
