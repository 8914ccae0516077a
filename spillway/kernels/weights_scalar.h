// Elements of a span in memory, one at a time: what the scalar references share.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/split.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels::scalar {

template <class T>
[[nodiscard]] T get(const std::byte* array, std::size_t i) {
  T value;
  std::memcpy(&value, array + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(std::byte* array, std::size_t i, T value) {
  std::memcpy(array + i * sizeof(T), &value, sizeof(T));
}

/// Gradient i, which lies as weights do.
[[nodiscard]] inline float gradient(Weights weights, const std::byte* grad, std::size_t i) {
  if (weights == Weights::bf16) return kernels::widen(get<std::uint16_t>(grad, i));
  return weights == Weights::fp16 ? kernels::widen_fp16(get<std::uint16_t>(grad, i)) : get<float>(grad, i);
}

/// The fp32 master of element i, and a new one.
[[nodiscard]] inline float master(Weights weights, const UpdateSpan& s, std::size_t i) {
  if (weights == Weights::bf16) {
    return std::bit_cast<float>(join_bits(get<std::uint16_t>(s.weight, i), get<std::uint16_t>(s.remainder, i)));
  }
  return get<float>(weights == Weights::fp16 ? s.remainder : s.weight, i);
}

inline void put_master(Weights weights, const UpdateSpan& s, std::size_t i, float value) {
  if (weights == Weights::fp32) return put(s.weight, i, value);
  if (weights == Weights::fp16) {
    put(s.remainder, i, value);
    return put(s.weight, i, round_fp16(value));
  }
  std::uint16_t weight, remainder;
  split_bits(std::bit_cast<std::uint32_t>(value), weight, remainder);
  put(s.weight, i, weight);
  put(s.remainder, i, remainder);
}

}  // namespace spillway::kernels::scalar
