// Weights of 4 and 8 bits: codes, and an fp32 scale for each block of kPackedBlock values, the last block shorter.
//
// nf4 is the 4-bit NormalFloat of QLoRA (arXiv 2305.14314, section 3), with the values and the packing of bitsandbytes:
// a value is kNf4.values[code] * scale, the scale the block's largest magnitude, the code that of the nearest of
// x * (1 / scale), the first value of a byte in its upper half. nf4_nested is the same with scales that are codes, too
// (nested_scales.h). int8 is code * scale,
// with codes from -127 to 127 as LLM.int8() has them for weights (arXiv 2208.07339, section 2), by block and not by
// row: the code is 127 x / largest to nearest even, the scale largest / 127.
//
// A block of zeros, or of magnitudes whose inverse no float holds, is all zero. A block with a NaN is all NaN,
// one with an infinity not finite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/kernels/bf16.h"
#include "spillway/kernels/elements_scalar.h"
#include "spillway/kernels/encoding.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/nested_scales.h"

namespace spillway::kernels {

/// The values of nf4's codes, times the scale: quantiles of a normal distribution, with 0 among them.
struct Nf4 {
  float values[16] = {-1.0F,         -0.6961928F, -0.52507305F, -0.3949175F, -0.28444138F, -0.18477343F,
                      -0.091050036F, 0.0F,        0.0795803F,   0.1609302F,  0.2461123F,   0.33791524F,
                      0.44070983F,   0.562617F,   0.72295684F,  1.0F};
};
inline constexpr Nf4 kNf4;

/// Codes and scales of `n` values; `codes` has code_bytes(n), `scales` one for each block, a part of one counted.
void pack_nf4(const float* in, std::size_t n, std::uint8_t* codes, float* scales);
void pack_int8(const float* in, std::size_t n, std::int8_t* codes, float* scales);
/// The scale of one block of nf4, of at most kPackedBlock values.
[[nodiscard]] float nf4_scale(const float* in, std::size_t n);

/// The values, rounded to nearest even. The first one begins a block; n may be 0; any alignment; no overlap.
void unpack_nf4(const std::uint8_t* codes, const float* scales, std::uint16_t* bf16, std::size_t n);
void unpack_nf4(const std::uint8_t* codes, const float* scales, Fp16* out, std::size_t n);
void unpack_nf4(const std::uint8_t* codes, const float* scales, float* out, std::size_t n);
void unpack_int8(const std::int8_t* codes, const float* scales, std::uint16_t* bf16, std::size_t n);
void unpack_int8(const std::int8_t* codes, const float* scales, Fp16* out, std::size_t n);
void unpack_int8(const std::int8_t* codes, const float* scales, float* out, std::size_t n);

/// Where the parts of an array of `all` values of nf4_nested lie.
struct NestedParts {
  const std::uint8_t* codes = nullptr;  ///< of values
  const std::uint8_t* scales = nullptr;
  const ScaleGroup* groups = nullptr;
};
[[nodiscard]] SPILLWAY_ON_DEVICE inline NestedParts nested_parts(const std::byte* array, std::uint64_t all) noexcept {
  constexpr auto kOf = Encoding::nf4_nested;
  return {reinterpret_cast<const std::uint8_t*>(array),
          reinterpret_cast<const std::uint8_t*>(array + scales_at(kOf, all)),
          reinterpret_cast<const ScaleGroup*>(array + scale_groups_at(kOf, all))};
}

/// Packs `n` of an array of `all` values of nf4_nested, from number `first` on, with the mean of their tensor's scales.
void pack_nested(const float* in, std::byte* array, std::uint64_t all, std::uint64_t first, std::size_t n, float mean);

/// Unpacks `n` of an array of `all` values of nf4_nested, from number `first` on, a multiple of kPackedBlock.
template <class T>
void unpack_nested(const std::byte* array, std::uint64_t all, std::uint64_t first, std::size_t n, T* out) {
  const auto parts = nested_parts(array, all);
  float scales[kNestedBlocks];
  constexpr std::size_t kMost = kNestedBlocks * kPackedBlock;
  for (std::size_t at = 0; at < n; at += kMost) {
    const auto count = n - at < kMost ? n - at : kMost;
    unpack_scales(parts.scales, parts.groups, (first + at) / kPackedBlock, (count + kPackedBlock - 1) / kPackedBlock,
                  scales);
    unpack_nf4(parts.codes + (first + at) / 2, scales, out + at, count);
  }
}

/// Unpacks `n` of an array of `all` packed values (encoding.h), from number `first` on, a multiple of kPackedBlock.
template <class T>
void unpack(Encoding encoding, const std::byte* array, std::uint64_t all, std::uint64_t first, std::size_t n, T* out) {
  if (encoding == Encoding::nf4_nested) return unpack_nested(array, all, first, n, out);
  const auto* const codes = array + code_bytes(encoding, first);
  const auto* const scales = reinterpret_cast<const float*>(array + scales_at(encoding, all)) + first / kPackedBlock;
  if (encoding == Encoding::nf4) {
    unpack_nf4(reinterpret_cast<const std::uint8_t*>(codes), scales, out, n);
  } else {
    unpack_int8(reinterpret_cast<const std::int8_t*>(codes), scales, out, n);
  }
}
/// Unpacks them to elements of `to`, which is not packed.
inline void unpack(Encoding encoding, const std::byte* array, std::uint64_t all, std::uint64_t first, std::size_t n,
                   Encoding to, std::byte* out) {
  switch (to) {
    case Encoding::bf16:
      return unpack(encoding, array, all, first, n, reinterpret_cast<std::uint16_t*>(out));
    case Encoding::fp16:
      return unpack(encoding, array, all, first, n, reinterpret_cast<Fp16*>(out));
    default:
      return unpack(encoding, array, all, first, n, reinterpret_cast<float*>(out));
  }
}
/// The reverse, from the masters of these values; `first` is a multiple of group_values(). `mean`: of the scales of the
/// tensor, where scales are codes.
inline void pack(Encoding encoding, const float* in, std::byte* array, std::uint64_t all, std::uint64_t first,
                 std::size_t n, float mean = 0) {
  if (encoding == Encoding::nf4_nested) return pack_nested(in, array, all, first, n, mean);
  auto* const codes = array + code_bytes(encoding, first);
  auto* const scales = reinterpret_cast<float*>(array + scales_at(encoding, all)) + first / kPackedBlock;
  if (encoding == Encoding::nf4) {
    pack_nf4(in, n, reinterpret_cast<std::uint8_t*>(codes), scales);
  } else {
    pack_int8(in, n, reinterpret_cast<std::int8_t*>(codes), scales);
  }
}

namespace scalar {

/// Value number `i`.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float nf4_value(const std::uint8_t* codes, float scale,
                                                        std::uint64_t i) noexcept {
  static constexpr Nf4 kOwn;  // which a GPU has, too, once and not in each thread
  const unsigned pair = codes[i / 2], code = i % 2 == 0 ? pair >> 4 : pair & 15;
  return quiet(kOwn.values[code] * scale);
}
[[nodiscard]] SPILLWAY_ON_DEVICE inline float nf4_value(const std::uint8_t* codes, const float* scales,
                                                        std::uint64_t i) noexcept {
  return nf4_value(codes, scales[i / kPackedBlock], i);
}
[[nodiscard]] SPILLWAY_ON_DEVICE inline float int8_value(const std::int8_t* codes, const float* scales,
                                                         std::uint64_t i) noexcept {
  return quiet(static_cast<float>(codes[i]) * scales[i / kPackedBlock]);
}

/// Value number `i` of an array of `all` packed ones.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float packed_value(Encoding encoding, const std::byte* array, std::uint64_t all,
                                                           std::uint64_t i) noexcept {
  if (encoding == Encoding::nf4_nested) {
    const auto parts = nested_parts(array, all);
    return nf4_value(parts.codes, nested_scale(parts.scales, parts.groups, i / kPackedBlock), i);
  }
  const auto* const scales = reinterpret_cast<const float*>(array + scales_at(encoding, all));
  if (encoding == Encoding::nf4) return nf4_value(reinterpret_cast<const std::uint8_t*>(array), scales, i);
  return int8_value(reinterpret_cast<const std::int8_t*>(array), scales, i);
}

template <class T>
void unpack_nf4(const std::uint8_t* codes, const float* scales, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(nf4_value(codes, scales, i), out[i]);
}
template <class T>
void unpack_int8(const std::int8_t* codes, const float* scales, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(int8_value(codes, scales, i), out[i]);
}

}  // namespace scalar

}  // namespace spillway::kernels
