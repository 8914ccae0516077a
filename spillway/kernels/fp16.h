// fp16 as 16-bit patterns, one element at a time, with integers: what CPUs with fp16 conversions give as well.
#pragma once

#include <bit>
#include <cstdint>

#include "spillway/base/on_device.h"

namespace spillway::kernels {

inline constexpr std::uint16_t kFp16NaN = 0x7E00;

/// An element of an array of fp16, where its type must tell it from bf16.
struct Fp16 {
  std::uint16_t bits;
};

/// The float of the same value; a NaN becomes quiet and keeps its payload.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float widen_fp16(std::uint16_t fp16) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(fp16 & 0x8000) << 16;
  const std::uint32_t exponent = fp16 >> 10 & 0x1F, fraction = fp16 & 0x3FF;
  if (exponent == 0) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f) | sign);
  }
  if (exponent < 31) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13 | (fraction != 0 ? 0x400000 : 0));
}

/// The nearest fp16, ties to even; infinite from 65520 on; NaN becomes kFp16NaN.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint16_t round_fp16(float value) noexcept {
  if (value != value) return kFp16NaN;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;
  if (magnitude < 0x38800000) {  // a denormal fp16: adding 0.5 leaves its multiple of 2^-24 in the low bits
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3F000000));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

}  // namespace spillway::kernels
