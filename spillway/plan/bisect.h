// Bisection.
#pragma once

#include <concepts>

namespace spillway::plan {

/// Largest n in [0, most] for which `fits(n)`, which is taken to be true for 0 and is monotone. What `fits`
/// leaves behind when it is true is of that n, unless that is 0.
template <std::unsigned_integral Count, class Fits>
Count bisect(Count most, const Fits& fits) {
  Count low = 0, high = most;
  while (low < high) {
    const Count middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace spillway::plan
