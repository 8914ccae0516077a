// Bytes per element of what an update reads and writes, by form; scales not counted.
#pragma once

#include "spillway/base/bytes.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels {

/// Bytes of the weight; the gradient has as many.
[[nodiscard]] constexpr Bytes weight_bytes(Weights weights) noexcept {
  return weights == Weights::fp32 ? 4 : 2;
}
/// Bytes of the remainder, which makes the weight a master.
[[nodiscard]] constexpr Bytes remainder_bytes(Weights weights) noexcept {
  return weights == Weights::split ? 2 : weights == Weights::fp16 ? 4 : 0;
}
/// Bytes of one moment.
[[nodiscard]] constexpr Bytes moment_bytes(Moments moments) noexcept {
  return moments == Moments::fp32 ? 4 : moments == Moments::bf16 ? 2 : 1;
}

}  // namespace spillway::kernels
