// Moments from and to fp32, for checkpoints: every value to the nearest that the form has. (An update rounds
// stochastically.) NaN becomes the one NaN. n may be 0; any alignment; no overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/kernels/code8.h"

namespace spillway::kernels {

/// Ties to even.
void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n);
void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n);

/// The 8-bit codes of code8.h. A scale for every started block of kQuantBlock elements, the first block at element 0.
void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n);
void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n);

namespace scalar {
void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n);
void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n);
void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n);
void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n);
}  // namespace scalar

}  // namespace spillway::kernels
