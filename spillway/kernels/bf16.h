// bf16 as 16-bit patterns, one element at a time: what the scalar references and every caller's tests agree on.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "spillway/base/on_device.h"

namespace spillway::kernels {

inline constexpr std::uint16_t kBf16NaN = 0x7FC0;
inline constexpr std::uint32_t kFloatNaN = 0x7FC00000;

/// A float and its pattern.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float as_float(std::uint32_t bits) noexcept {
  return std::bit_cast<float>(bits);
}
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint32_t as_bits(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value);
}

/// The float of the same value; every pattern survives.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float widen(std::uint16_t bf16) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

/// The nearest bf16, ties to even; NaN becomes kBf16NaN, as in PyTorch.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint16_t round_bf16(float value) noexcept {
  if (value != value) return kBf16NaN;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// One of the two nearest bf16, the upper one (in magnitude) with probability proportional to how near it is; `chance`
/// is below 2^16. Unbiased; a value that is a bf16 stays. The largest finite bf16 is never rounded up to infinity; NaN
/// becomes kBf16NaN.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint16_t round_bf16_randomly(float value, std::uint32_t chance) noexcept {
  if (value != value) return kBf16NaN;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool largest = (bits & 0x7FFF0000) == 0x7F7F0000;
  return static_cast<std::uint16_t>((bits + (largest ? 0 : chance)) >> 16);
}

/// NaN payloads depend on the order of an instruction's operands, which compilers may swap; results hold one NaN only.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float quiet(float value) noexcept {
  return value == value ? value : std::bit_cast<float>(kFloatNaN);
}

[[nodiscard]] SPILLWAY_ON_DEVICE inline double quiet(double value) noexcept {
  return value == value ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace spillway::kernels
