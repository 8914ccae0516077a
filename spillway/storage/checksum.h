// The checksum of a piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::storage {

/// XXH3-64 of the bytes, seeded; pieces are seeded with their place in the volume, so that a piece that was written or
/// read at the wrong offset is found although its bytes are whole.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) noexcept;

}  // namespace spillway::storage
