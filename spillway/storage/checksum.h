// The checksum of a piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::storage {

/// XXH3-64 of the bytes, seeded; pieces are seeded with their place in the volume, so that a piece that was written or
/// read at the wrong offset is found although its bytes are whole.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) noexcept;

/// XXH3-64, seeded with 0, of bytes that come in parts. The parts together have the checksum of the whole.
class RunningChecksum {
 public:
  RunningChecksum() noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t kBytes = 576;  ///< of xxHash's state
  alignas(64) std::array<std::byte, kBytes> state_;
};

}  // namespace spillway::storage
