// Moments in 8 bits: small floating-point codes and one power of two for every kQuantBlock elements.
//
// Scales of blocks follow Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022 (arXiv
// 2110.02861); floating-point codes under a shared power of two are those of the OCP Microscaling formats (arXiv
// 2310.10537) and of COAT (arXiv 2410.19313). Both are computed exactly with a few integer operations.
//
// First moment: sign, 3 bits of exponent, 4 of fraction, after adding a bias: the mu-law segments of ITU-T G.711. 0 is
// exact; steps are 2^-11 of the scale near 0 and grow to 1/16 of the value.
// Second moment: 4 bits of exponent, 4 of fraction, no 0 (Li et al., "Memory Efficient Optimizers with 4-bit States",
// arXiv 2309.01507: a second moment that rounds to 0 blows the update up). What is below 2^-15 of the scale is kept as
// 2^-15: such an element moves a little less than it would.
//
// Codes are rounded stochastically, without bias in the value: rounding to nearest would lose every change smaller than
// half a step, which is most of them. Two elements that are neighbours have a word of 32 random bits (random.h): the
// first moment of the one is rounded with its lower bits, of the other with its upper bits, the second moments the
// other way round, so that no element's two moments know of each other. The scale, a power of two, is the smallest that
// holds the block; so a value that is representable stays where it is. A block of zeros has scale 0, a block with a
// value that is not finite, or 2^126 and more, the scale NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/kernels/bf16.h"

namespace spillway::kernels {

enum class Moment : std::uint8_t { first, second };

inline constexpr std::uint32_t kCodeShift = 19;       ///< what a code lacks of a float's fraction
inline constexpr std::uint32_t kCodeHalf = 1u << 18;  ///< half a step: added instead of a random number
inline constexpr std::uint32_t kChanceMask = (1u << kCodeShift) - 1;
inline constexpr float kFirstBias = 0x1p-7f;      ///< bits 120 << 23: exponents 120 to 127 have the low bits 0 to 7
inline constexpr float kSecondLowest = 0x1p-15f;  ///< bits 112 << 23: exponents 112 to 127 have the low bits 0 to 15
template <Moment kMoment>
inline constexpr float kHighest = kMoment == Moment::first ? 0x1.Fp+0f - kFirstBias : 0x1.Fp+0f;  ///< code's value
inline constexpr float kLowestScale = 0x1p-100f;
inline constexpr float kBeyondScales = 0x1p126f;  ///< the scale of such values is NaN

/// The scale for a block whose largest magnitude has these bits (sign 0).
[[nodiscard]] SPILLWAY_ON_DEVICE inline float block_scale(std::uint32_t largest_bits, Moment moment) noexcept {
  const float largest = std::bit_cast<float>(largest_bits);
  if (largest_bits == 0) return 0;
  if (!(largest < kBeyondScales)) return std::bit_cast<float>(kFloatNaN);
  const float highest = moment == Moment::first ? kHighest<Moment::first> : kHighest<Moment::second>;
  float scale = std::bit_cast<float>(largest_bits & 0x7F800000);
  if (largest > scale * highest) scale *= 2;
  return scale < kLowestScale ? kLowestScale : scale;
}

/// What is added before a code's lower bits are cut off, of the two numbers of a pair of elements: below a step.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr std::uint32_t code_chance(std::uint16_t even, std::uint16_t odd,
                                                                     bool upper) noexcept {
  const std::uint32_t word = even | static_cast<std::uint32_t>(odd) << 16;
  return upper ? word >> (32 - kCodeShift) : word & kChanceMask;
}

/// What values are multiplied by before they are encoded.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float block_reciprocal(float scale) noexcept {
  if (scale == 0) return 0;
  return scale == scale ? std::bit_cast<float>(0x7F000000 - std::bit_cast<std::uint32_t>(scale)) : 1;
}

/// `scaled`: value times block_reciprocal; `random` below 2^kCodeShift, or kCodeHalf.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint8_t encode_first(float scaled, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(scaled);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF) + kFirstBias;
  const std::uint32_t code = (std::bit_cast<std::uint32_t>(magnitude) + random) >> kCodeShift & 0x7F;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80));
}

[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint8_t encode_second(float scaled, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(scaled), lowest = std::bit_cast<std::int32_t>(kSecondLowest);
  const auto clamped = static_cast<std::uint32_t>(bits > lowest ? bits : lowest);
  return static_cast<std::uint8_t>((clamped + random) >> kCodeShift);
}

/// `scale` is what block_scale() gives. 0, not -0, of both codes that mean it.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float decode_first(std::uint8_t code, float scale) noexcept {
  const std::uint32_t bits = (code & 0x7Fu) << kCodeShift | std::bit_cast<std::uint32_t>(kFirstBias);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  return sign * std::bit_cast<float>(bits) * scale - sign * kFirstBias * scale;
}

[[nodiscard]] SPILLWAY_ON_DEVICE inline float decode_second(std::uint8_t code, float scale) noexcept {
  const std::uint32_t bits =
      static_cast<std::uint32_t>(code) << kCodeShift | std::bit_cast<std::uint32_t>(kSecondLowest);
  return std::bit_cast<float>(bits) * scale;
}

}  // namespace spillway::kernels
