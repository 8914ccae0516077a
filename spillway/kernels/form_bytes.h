// Bytes per element of what an update reads and writes, by form; scales not counted.
#pragma once

#include "spillway/base/bytes.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels {

/// Of the weight; the gradient has as many.
[[nodiscard]] constexpr Bytes weight_bytes(Weights weights) noexcept {
  return weights == Weights::fp32 ? 4 : 2;
}
/// Of what makes the weight a master.
[[nodiscard]] constexpr Bytes rest_bytes(Weights weights) noexcept {
  return weights == Weights::split ? 2 : weights == Weights::fp16 ? 4 : 0;
}
/// Of one moment.
[[nodiscard]] constexpr Bytes moment_bytes(Moments moments) noexcept {
  return moments == Moments::fp32 ? 4 : moments == Moments::bf16 ? 2 : 1;
}

}  // namespace spillway::kernels
