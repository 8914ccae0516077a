// Rows of a host reference, shared out among threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "spillway/device/work.h"

namespace spillway::device {

inline constexpr std::uint64_t kRowsPerTile = 16;

/// Calls body(row) for every row, a few to a tile of the loop.
template <class Body>
void by_row(std::uint64_t rows, const ParallelFor& parallel_for, const Body& body) {
  parallel_for.run((rows + kRowsPerTile - 1) / kRowsPerTile, [&](std::size_t tile) {
    const auto end = std::min<std::uint64_t>((tile + 1) * kRowsPerTile, rows);
    for (std::uint64_t row = tile * kRowsPerTile; row < end; ++row) body(row);
  });
}

}  // namespace spillway::device
