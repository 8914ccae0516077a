// Threads that work on a node's memory at once, and what they do there.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "spillway/machine/calibrate.h"

namespace spillway::machine {

/// Sum of what threads reach that work at once, each on its part of `memory`, on the CPUs `near`. `work` says
/// what one reaches. `threads` > 0.
[[nodiscard]] double together(std::span<std::byte> memory, unsigned threads, const std::vector<unsigned>& near,
                              const std::function<double(std::span<std::byte>)>& work);

/// Bytes per second that one thread reads, or writes, over `seconds`.
[[nodiscard]] double read_rate(std::span<const std::byte> memory, double seconds);
[[nodiscard]] double write_rate(std::span<std::byte> memory, double seconds);

/// Elements per second that updates reach on one thread, and on `threads` at once (fewer where a thread's part of
/// `memory` would be below kCalibrationMemory): the best of three turns, which take `seconds` together, since two
/// threads that shared a core for a moment were seen to be no faster than one.
struct UpdateRates {
  double thread = 0, all = 0;
};
[[nodiscard]] UpdateRates update_rates(std::span<std::byte> memory, const std::vector<unsigned>& near,
                                       std::size_t threads, double seconds, const UpdateKind& kind);

}  // namespace spillway::machine
