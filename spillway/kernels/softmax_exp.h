// exp in float, the same bits wherever multiply-adds are fused: constants and the scalar form.
//
// exp(x) = 2^k * p(r), k = round(x / ln 2), r = x - k ln 2 in two fused steps, p of degree 6 with a minimax error of
// 4e-9. Within 2e-7 of exp in [kExpLowest, kExpHighest], exact at 0; 0 below, infinity above, NaN for NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/kernels/bf16.h"

namespace spillway::kernels {

inline constexpr float kExpLowest = -87.33f;  ///< exp of what is below would be a denormal number
inline constexpr float kExpHighest = 88.72f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e43p-1f;
inline constexpr float kLn2Low = -0x1.05c61p-29f;
inline constexpr float kRoundMagic = 0x1.8p+23f;  ///< adding it rounds to an integer, which the low 9 bits then hold
// The coefficients of r^2 to r^6; those of 1 and r are 1. They have names because a GPU's code cannot look into an
// array of the host.
inline constexpr float kExp2 = 0x1.fffffcp-2f, kExp3 = 0x1.55549p-3f, kExp4 = 0x1.5558f8p-5f, kExp5 = 0x1.123b02p-7f,
                       kExp6 = 0x1.6a2256p-10f;
inline constexpr float kExpCoefficients[] = {kExp2, kExp3, kExp4, kExp5, kExp6};

namespace scalar {

[[nodiscard]] SPILLWAY_ON_DEVICE inline float exp(float x) noexcept {
  const float magic = std::fma(x, kLog2E, kRoundMagic);
  const float k = magic - kRoundMagic;
  const float r = std::fma(k, -kLn2Low, std::fma(k, -kLn2High, x));
  float p = std::fma(std::fma(kExp6, r, kExp5), r, kExp4);
  p = std::fma(std::fma(p, r, kExp3), r, kExp2);
  p = std::fma(std::fma(p, r, 1.0f), r, 1.0f);
  const float scaled =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(magic) << 23));
  if (x != x) return std::bit_cast<float>(kFloatNaN);
  if (x < kExpLowest) return 0.0f;
  return x > kExpHighest ? INFINITY : scaled;
}

}  // namespace scalar

/// How a slice joins what was seen before it: (maximum, sum) at the old maximum becomes (maximum, sum) at the new one.
struct SoftmaxFold {
  float maximum;  ///< of everything so far; never -0
  float shift;    ///< what to subtract from logits: the maximum, or 0 while that is -infinity
  float rescale;  ///< of the old sum

  /// `highest`: the larger of the old maximum and the slice's, NaN left out.
  SPILLWAY_ON_DEVICE SoftmaxFold(float old_maximum, float highest) noexcept
      : maximum(highest + 0.0f),
        shift(maximum == -INFINITY ? 0.0f : maximum),
        rescale(scalar::exp(old_maximum - shift)) {}

  [[nodiscard]] SPILLWAY_ON_DEVICE float sum(float old_sum, float slice_sum) const noexcept {
    return quiet(old_sum * rescale + slice_sum);
  }
};

}  // namespace spillway::kernels
