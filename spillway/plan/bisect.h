// Bisection.
#pragma once

#include <algorithm>
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

/// Searches first at `guess`, then farther and farther from it, which is quick where the guess is near.
template <std::unsigned_integral Count, class Fits>
Count bisect_from(Count guess, Count most, const Fits& fits) {
  if (most == 0) return 0;
  Count low = 0, high = most, step = 1;
  const auto ask = [&](Count at) {
    const bool does = fits(at);
    (does ? low : high) = does ? at : at - 1;
    return does;
  };
  if (ask(std::clamp<Count>(guess, 1, most))) {
    while (low < high && ask(low + std::min<Count>(step, high - low))) step *= 2;
  } else {
    while (low < high && !ask(high - std::min<Count>(step - 1, high - low - 1))) step *= 2;
  }
  const auto base = low;
  return base + bisect<Count>(high - base, [&](Count more) { return fits(static_cast<Count>(base + more)); });
}

}  // namespace spillway::plan
