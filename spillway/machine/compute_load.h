// A stand-in for compute, to see what it loses to other work on its CPUs.
#pragma once

#include <functional>

namespace spillway::machine {

/// Parts per second that `threads` threads reach while `work` runs on the calling thread. A part is about a millisecond
/// of arithmetic on each, and ends when the last one has done its share, as a matrix product does: a thread that is
/// held up holds up all. It needs no memory. `threads` > 0. Throws what `work` throws.
[[nodiscard]] double parts_per_second(unsigned threads, const std::function<void()>& work);

/// The share of its speed that such compute keeps beside `work`, 0 to 1; `seconds` more for its speed alone.
[[nodiscard]] double share_beside(unsigned threads, double seconds, const std::function<void()>& work);

}  // namespace spillway::machine
