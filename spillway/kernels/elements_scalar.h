// Elements of the three types that models compute in, to and from fp32: elements-inl.h, one at a time.
#pragma once

#include <cstdint>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"

namespace spillway::kernels::scalar {

[[nodiscard]] inline float load(std::uint16_t bf16) noexcept {
  return kernels::widen(bf16);
}
[[nodiscard]] inline float load(float value) noexcept {
  return value;
}
[[nodiscard]] inline float load(Fp16 value) noexcept {
  return kernels::widen_fp16(value.bits);
}
inline void store(float value, std::uint16_t& out) noexcept {
  out = round_bf16(value);
}
inline void store(float value, float& out) noexcept {
  out = quiet(value);
}
inline void store(float value, Fp16& out) noexcept {
  out.bits = round_fp16(value);
}

}  // namespace spillway::kernels::scalar
