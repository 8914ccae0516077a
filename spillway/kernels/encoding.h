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
  nf4,         ///< packed.h
  int8,        ///< the same
  nf4_nested,  ///< nf4 with scales that are codes, too (nested_scales.h)
};

/// Values of a packed encoding that share a scale.
inline constexpr std::uint64_t kPackedBlock = 64;
/// Blocks whose scales, where these are codes, share a scale of their own.
inline constexpr std::uint64_t kNestedBlocks = 256;

/// How a group of scales is decoded: code's value * scale + offset.
struct ScaleGroup {
  float scale = 0, offset = 0;
};

[[nodiscard]] SPILLWAY_ON_DEVICE constexpr bool is_packed(Encoding encoding) noexcept {
  return encoding == Encoding::nf4 || encoding == Encoding::int8 || encoding == Encoding::nf4_nested;
}

/// An array holds a multiple of so many values, and a tensor in it begins at such a multiple.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr std::uint64_t group_values(Encoding encoding) noexcept {
  if (encoding == Encoding::nf4_nested) return kNestedBlocks * kPackedBlock;
  return is_packed(encoding) ? kPackedBlock : 1;
}

/// Bytes of the elements or codes of `n` values; of nf4 an even number, or the last ones.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes code_bytes(Encoding encoding, std::uint64_t n) noexcept {
  switch (encoding) {
    case Encoding::nf4:
    case Encoding::nf4_nested:
      return (n + 1) / 2;
    case Encoding::int8:
      return n;
    case Encoding::fp32:
      return 4 * n;
    default:
      return 2 * n;
  }
}

/// In an array of `n` packed values, a multiple of group_values(), codes lie first, then an fp32 scale for each block;
/// where scales are codes a byte for each block, then a ScaleGroup for each group. This is where scales begin.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes scales_at(Encoding encoding, std::uint64_t n) noexcept {
  return code_bytes(encoding, n);
}

/// Where the groups of scales that are codes begin.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes scale_groups_at(Encoding encoding, std::uint64_t n) noexcept {
  return scales_at(encoding, n) + n / kPackedBlock;
}

/// Bytes of an array of `n` values; of packed ones a multiple of group_values().
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr Bytes encoded_bytes(Encoding encoding, std::uint64_t n) noexcept {
  if (encoding == Encoding::nf4_nested) {
    return scale_groups_at(encoding, n) + n / group_values(encoding) * sizeof(ScaleGroup);
  }
  return code_bytes(encoding, n) + (is_packed(encoding) ? n / kPackedBlock * sizeof(float) : 0);
}

}  // namespace spillway::kernels
