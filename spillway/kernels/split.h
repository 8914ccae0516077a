// A float as bf16 and the 16 bits that are missing: the fp32 master weight without a second copy.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "spillway/base/on_device.h"

namespace spillway::kernels {

/// Splits a float into bf16 (round half away from zero) and its low 16 bits; join inverts it bit for bit
/// (high = bf16 - (low >> 15)). All 2^32 patterns survive. n may be 0; any alignment; no overlap.
void split(const float* master, std::uint16_t* weight, std::uint16_t* remainder, std::size_t n);
void join(const std::uint16_t* weight, const std::uint16_t* remainder, float* master, std::size_t n);

namespace scalar {

/// One element, as patterns: a float register would be allowed to change a signalling NaN.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint32_t join_bits(std::uint16_t weight,
                                                                std::uint16_t remainder) noexcept {
  const auto high = static_cast<std::uint16_t>(weight - (remainder >> 15));
  return static_cast<std::uint32_t>(high) << 16 | remainder;
}
SPILLWAY_ON_DEVICE inline void split_bits(std::uint32_t bits, std::uint16_t& weight,
                                          std::uint16_t& remainder) noexcept {
  weight = static_cast<std::uint16_t>((bits + 0x8000) >> 16);
  remainder = static_cast<std::uint16_t>(bits);
}

void split(const float* master, std::uint16_t* weight, std::uint16_t* remainder, std::size_t n);
void join(const std::uint16_t* weight, const std::uint16_t* remainder, float* master, std::size_t n);

}  // namespace scalar

}  // namespace spillway::kernels
