// A running mean of samples, the same bits on the host and on a device.
#pragma once

#include "spillway/base/on_device.h"

namespace spillway::kernels {

/// The part of a mean that stays from one sample to the next.
inline constexpr double kMeanKept = 0.9;

/// The mean after one more sample; `samples` before it, of which the first is the mean.
SPILLWAY_ON_DEVICE constexpr double fold(double mean, double sample, double samples) noexcept {
  const double kept = samples == 0 ? 0 : kMeanKept;
  const double before = kept * mean, now = (1 - kept) * sample;
  return before + now;
}

}  // namespace spillway::kernels
