#include <algorithm>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/moments.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels::scalar {

void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) bf16[i] = round_bf16(values[i]);
}

void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) values[i] = quiet(widen(bf16[i]));
}

void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n) {
  for (std::size_t first = 0; first < n; first += kQuantBlock) {
    const std::size_t end = std::min(n, first + kQuantBlock);
    std::uint32_t largest = 0;
    for (std::size_t i = first; i < end; ++i) {
      largest = std::max(largest, std::bit_cast<std::uint32_t>(quiet(values[i])) & 0x7FFFFFFF);
    }
    const float scale = scales[first / kQuantBlock] = block_scale(largest, moment);
    for (std::size_t i = first; i < end; ++i) {
      const float scaled = quiet(values[i]) * block_reciprocal(scale);
      codes[i] = moment == Moment::first ? encode_first(scaled, kCodeHalf) : encode_second(scaled, kCodeHalf);
    }
  }
}

void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float scale = scales[i / kQuantBlock];
    values[i] = quiet(moment == Moment::first ? decode_first(codes[i], scale) : decode_second(codes[i], scale));
  }
}

}  // namespace spillway::kernels::scalar
