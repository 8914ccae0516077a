// Moments from and to fp32, for checkpoints: every value to the nearest that the form has. (An update rounds
// stochastically.) NaN becomes the one NaN. n may be 0; any alignment; no overlap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "spillway/kernels/code8.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels {

/// Ties to even.
void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n);
void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n);

/// The 8-bit codes of code8.h. A scale for every started block of kQuantBlock elements, the first block at element 0.
void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n);
void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n);

/// What a format of moments says of itself. A new one is a row, and a class in moments-inl.h.
struct MomentsTraits {
  const char* name;   ///< in configurations
  const char* dtype;  ///< of its elements in files
  Bytes bytes;        ///< of an element
  bool is_scaled;     ///< every started block of kQuantBlock elements has an fp32 scale
  /// As above, of moment `k`, 0 or 1, of an optimizer; what is not scaled looks at no scales.
  void (*encode)(std::size_t k, const float* values, std::byte* out, float* scales, std::size_t n);
  void (*decode)(std::size_t k, const std::byte* in, const float* scales, float* values, std::size_t n);
};

inline constexpr std::array<MomentsTraits, 3> kMomentFormats = {{
    {"exact", "F32", 4, false,
     [](std::size_t, const float* values, std::byte* out, float*, std::size_t n) {
       std::memcpy(out, values, n * sizeof(float));
     },
     [](std::size_t, const std::byte* in, const float*, float* values, std::size_t n) {
       std::memcpy(values, in, n * sizeof(float));
     }},
    {"bf16", "BF16", 2, false,
     [](std::size_t, const float* values, std::byte* out, float*, std::size_t n) {
       encode_bf16(values, reinterpret_cast<std::uint16_t*>(out), n);
     },
     [](std::size_t, const std::byte* in, const float*, float* values, std::size_t n) {
       decode_bf16(reinterpret_cast<const std::uint16_t*>(in), values, n);
     }},
    {"int8", "U8", 1, true,
     [](std::size_t k, const float* values, std::byte* out, float* scales, std::size_t n) {
       encode_int8(Moment{static_cast<std::uint8_t>(k)}, values, reinterpret_cast<std::uint8_t*>(out), scales, n);
     },
     [](std::size_t k, const std::byte* in, const float* scales, float* values, std::size_t n) {
       decode_int8(Moment{static_cast<std::uint8_t>(k)}, reinterpret_cast<const std::uint8_t*>(in), scales, values, n);
     }},
}};

[[nodiscard]] constexpr const MomentsTraits& traits(Moments moments) noexcept {
  return kMomentFormats[static_cast<std::size_t>(moments)];
}
[[nodiscard]] constexpr const char* name_of(Moments moments) noexcept {
  return traits(moments).name;
}

namespace scalar {
void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n);
void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n);
void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n);
void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n);
}  // namespace scalar

}  // namespace spillway::kernels
