// How values lie in memory: as elements of a type, or packed, as codes of fewer bits with a scale for each block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/base/bytes.h"
#include "spillway/base/on_device.h"

namespace spillway::kernels {

enum class Encoding : std::uint8_t {
  bf16,
  fp16,
  fp32,
  nf4,   ///< packed.h
  int8,  ///< the same
};

/// Values of a packed encoding that share a scale.
inline constexpr std::uint64_t kPackedBlock = 64;

[[nodiscard]] SPILLWAY_ON_DEVICE constexpr bool is_packed(Encoding encoding) noexcept {
  return encoding == Encoding::nf4 || encoding == Encoding::int8;
}

/// Bytes of the elements or codes of `n` values; of nf4 an even number, or the last ones.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes code_bytes(Encoding encoding, std::uint64_t n) noexcept {
  switch (encoding) {
    case Encoding::nf4:
      return (n + 1) / 2;
    case Encoding::int8:
      return n;
    case Encoding::fp32:
      return 4 * n;
    default:
      return 2 * n;
  }
}

/// In an array of `n` packed values, a multiple of kPackedBlock, codes lie first, then an fp32 scale for each block:
/// where these begin.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes scales_at(Encoding encoding, std::uint64_t n) noexcept {
  return code_bytes(encoding, n);
}

/// Bytes of an array of `n` values; of packed ones a multiple of kPackedBlock.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes encoded_bytes(Encoding encoding, std::uint64_t n) noexcept {
  return code_bytes(encoding, n) + (is_packed(encoding) ? n / kPackedBlock * sizeof(float) : 0);
}

}  // namespace spillway::kernels
