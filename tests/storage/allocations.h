// Counts what the whole program allocates, so that a test can show that there is none.
#pragma once

#include <cstdint>

namespace spillway::storage::testing {

/// Calls of operator new since the program began.
[[nodiscard]] std::uint64_t allocations() noexcept;

}  // namespace spillway::storage::testing
