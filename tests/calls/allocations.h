// `operator new` of this program, of which one call may fail, or all from one on.
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway::calls {

/// From now on allocations are counted from 1 in `count`, and number `first` throws std::bad_alloc; `forever`: so do
/// all after it. 0: none does.
void arm(std::uint64_t first, bool forever, std::atomic<std::uint64_t>& count);
void disarm();

}  // namespace spillway::calls
