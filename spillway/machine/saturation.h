// How a rate grows with the threads that work on it, and where it stops growing.
#pragma once

#include <functional>

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// Tries 1, 2, 4 ... and at last `most` (> 0) threads, until a step is not 5 % faster than the best before. `rate` says
/// what a number of threads reaches together.
[[nodiscard]] Saturation saturate(unsigned most, const std::function<double(unsigned threads)>& rate);

}  // namespace spillway::machine
