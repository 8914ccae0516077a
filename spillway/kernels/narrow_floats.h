// Floats of 8 and 4 bits, as published checkpoints have them, one at a time: the OCP formats (FP8, MX).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace spillway::kernels {

/// FP8 e4m3 without infinities: 0x7F and 0xFF are NaN.
[[nodiscard]] inline float widen_e4m3(std::uint8_t code) noexcept {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// A scale that is an exponent alone (e8m0); 0xFF is NaN.
[[nodiscard]] inline float widen_e8m0(std::uint8_t code) noexcept {
  return code == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
}

/// FP4 e2m1; the upper four bits of `code` are ignored.
[[nodiscard]] inline float widen_e2m1(std::uint8_t code) noexcept {
  constexpr float kMagnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace spillway::kernels
