#include "spillway/kernels/packed.h"

#include <algorithm>
#include <array>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/packed.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/elements-inl.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

/// What each code of a block stands for, as elements.
template <class T>
HWY_INLINE void products(float scale, T* out) {
  const hn::CappedTag<float, 16> d;
  const auto factor = hn::Set(d, scale);
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
    store(d, hn::Mul(hn::LoadU(d, kNf4.values + i), factor), out + i);
  }
}

template <class T>
HWY_INLINE void look_up(const T* values, const std::uint8_t* codes, T* out) {
  for (std::size_t i = 0; i < kPackedBlock / 2; ++i) {
    out[2 * i] = values[codes[i] >> 4];
    out[2 * i + 1] = values[codes[i] & 15];
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Elements of two bytes: a table of the lower bytes and one of the upper ones, each as long as a vector.
HWY_INLINE void look_up_halves(const std::uint8_t* values, const std::uint8_t* codes, std::uint8_t* out) {
  const hn::FixedTag<std::uint8_t, 16> d;
  const auto first = hn::LoadU(d, values), second = hn::LoadU(d, values + 16);
  const auto lower = hn::ConcatEven(d, second, first), upper = hn::ConcatOdd(d, second, first);
  const auto put = [=](hn::VFromD<decltype(d)> code, std::uint8_t* to) HWY_ATTR {
    const auto low = hn::TableLookupBytes(lower, code), high = hn::TableLookupBytes(upper, code);
    hn::StoreU(hn::InterleaveLower(d, low, high), d, to);
    hn::StoreU(hn::InterleaveUpper(d, low, high), d, to + 16);
  };
  for (std::size_t i = 0; i < kPackedBlock / 2; i += 16) {
    const auto pairs = hn::LoadU(d, codes + i);
    const auto even = hn::ShiftRight<4>(pairs), odd = hn::And(pairs, hn::Set(d, 15));
    put(hn::InterleaveLower(d, even, odd), out + 4 * i);
    put(hn::InterleaveUpper(d, even, odd), out + 4 * i + 32);
  }
}
HWY_INLINE void look_up(const std::uint16_t* values, const std::uint8_t* codes, std::uint16_t* out) {
  look_up_halves(reinterpret_cast<const std::uint8_t*>(values), codes, reinterpret_cast<std::uint8_t*>(out));
}
HWY_INLINE void look_up(const Fp16* values, const std::uint8_t* codes, Fp16* out) {
  look_up_halves(reinterpret_cast<const std::uint8_t*>(values), codes, reinterpret_cast<std::uint8_t*>(out));
}
#endif

template <class T>
HWY_INLINE void nf4_blocks(const std::uint8_t* codes, const float* scales, T* out, std::size_t n) {
  T values[16];
  std::size_t i = 0;
  for (; i + kPackedBlock <= n; i += kPackedBlock) {
    products(scales[i / kPackedBlock], values);
    look_up(values, codes + i / 2, out + i);
  }
  if (i < n) kernels::scalar::unpack_nf4(codes + i / 2, scales + i / kPackedBlock, out + i, n - i);
}

template <class T>
HWY_INLINE void int8_blocks(const std::int8_t* codes, const float* scales, T* out, std::size_t n) {
  for (std::size_t first = 0; first < n; first += kPackedBlock) {
    const float scale = scales[first / kPackedBlock];
    for_each_vector<float>(HWY_MIN(kPackedBlock, n - first), [=](auto d, std::size_t i) HWY_ATTR {
      using D = decltype(d);
      const auto code = hn::LoadU(hn::Rebind<std::int8_t, D>(), codes + first + i);
      const auto value = hn::ConvertTo(d, hn::PromoteTo(hn::Rebind<std::int32_t, D>(), code));
      store(d, hn::Mul(value, hn::Set(d, scale)), out + first + i);
    });
  }
}

void nf4_to_bf16(const std::uint8_t* codes, const float* scales, std::uint16_t* out, std::size_t n) {
  nf4_blocks(codes, scales, out, n);
}
void nf4_to_fp16(const std::uint8_t* codes, const float* scales, Fp16* out, std::size_t n) {
  nf4_blocks(codes, scales, out, n);
}
void nf4_to_fp32(const std::uint8_t* codes, const float* scales, float* out, std::size_t n) {
  nf4_blocks(codes, scales, out, n);
}
void int8_to_bf16(const std::int8_t* codes, const float* scales, std::uint16_t* out, std::size_t n) {
  int8_blocks(codes, scales, out, n);
}
void int8_to_fp16(const std::int8_t* codes, const float* scales, Fp16* out, std::size_t n) {
  int8_blocks(codes, scales, out, n);
}
void int8_to_fp32(const std::int8_t* codes, const float* scales, float* out, std::size_t n) {
  int8_blocks(codes, scales, out, n);
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {
namespace {

constexpr float kMostCode = 127;

/// The largest magnitude; NaN where there is one.
float largest_of(const float* in, std::size_t n) {
  float out = 0;
  bool number = true;
  for (std::size_t i = 0; i < n; ++i) {
    out = std::max(out, std::abs(in[i]));
    number = number && in[i] == in[i];
  }
  return number ? out : as_float(kFloatNaN);
}

/// Calls body(first, count, largest, inverse) for each block, the inverse of what has none 0 and its largest, too.
template <class Body>
void for_blocks(const float* in, std::size_t n, float numerator, const Body& body) {
  for (std::size_t first = 0; first < n; first += kPackedBlock) {
    const auto count = std::min<std::size_t>(kPackedBlock, n - first);
    const float largest = largest_of(in + first, count), inverse = numerator / largest;
    const bool zero = std::isinf(inverse);
    body(first, count, zero ? 0.0F : largest, zero ? 0.0F : inverse);
  }
}

}  // namespace

HWY_EXPORT(nf4_to_bf16);
HWY_EXPORT(nf4_to_fp16);
HWY_EXPORT(nf4_to_fp32);
HWY_EXPORT(int8_to_bf16);
HWY_EXPORT(int8_to_fp16);
HWY_EXPORT(int8_to_fp32);

void pack_nf4(const float* in, std::size_t n, std::uint8_t* codes, float* scales) {
  for_blocks(in, n, 1.0F, [=](std::size_t first, std::size_t count, float largest, float inverse) {
    std::array<float, kPackedBlock> x{};
    std::array<std::uint8_t, kPackedBlock> code{};
    for (std::size_t i = 0; i < count; ++i) x[i] = in[first + i] * inverse;
    for (std::size_t c = 0; c + 1 < 16; ++c) {
      const auto between = static_cast<float>((double{kNf4.values[c]} + double{kNf4.values[c + 1]}) / 2);
      for (std::size_t i = 0; i < kPackedBlock; ++i) code[i] = static_cast<std::uint8_t>(code[i] + (x[i] > between));
    }
    for (std::size_t i = 0; i < count; i += 2) {
      codes[(first + i) / 2] = static_cast<std::uint8_t>(code[i] << 4 | code[i + 1]);
    }
    scales[first / kPackedBlock] = largest;
  });
}

float nf4_scale(const float* in, std::size_t n) {
  float out = 0;
  for_blocks(in, n, 1.0F, [&](std::size_t, std::size_t, float largest, float) { out = largest; });
  return out;
}

void pack_nested(const float* in, std::byte* array, std::uint64_t all, std::uint64_t first, std::size_t n, float mean) {
  constexpr auto kOf = Encoding::nf4_nested;
  auto* const scale_codes = reinterpret_cast<std::uint8_t*>(array + scales_at(kOf, all)) + first / kPackedBlock;
  auto* const groups = reinterpret_cast<ScaleGroup*>(array + scale_groups_at(kOf, all)) + first / group_values(kOf);
  std::array<float, kNestedBlocks> scales;  // NOLINT: filled below
  for (std::size_t at = 0; at < n; at += group_values(kOf)) {
    const auto count = std::min<std::size_t>(group_values(kOf), n - at);
    pack_nf4(in + at, count, reinterpret_cast<std::uint8_t*>(array) + (first + at) / 2, scales.data());
    pack_scales(scales.data(), ceil_div(count, kPackedBlock), mean, scale_codes + at / kPackedBlock,
                groups + at / group_values(kOf));
  }
}

void pack_int8(const float* in, std::size_t n, std::int8_t* codes, float* scales) {
  for_blocks(in, n, kMostCode, [=](std::size_t first, std::size_t count, float largest, float inverse) {
    for (std::size_t i = 0; i < count; ++i) {
      const float code = std::nearbyint(in[first + i] * inverse);
      const bool number = code == code;
      codes[first + i] = static_cast<std::int8_t>(number ? std::clamp(code, -kMostCode, kMostCode) : 0.0F);
    }
    scales[first / kPackedBlock] = largest / kMostCode;
  });
}

void unpack_nf4(const std::uint8_t* codes, const float* scales, std::uint16_t* bf16, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(nf4_to_bf16)(codes, scales, bf16, n);
}
void unpack_nf4(const std::uint8_t* codes, const float* scales, Fp16* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(nf4_to_fp16)(codes, scales, out, n);
}
void unpack_nf4(const std::uint8_t* codes, const float* scales, float* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(nf4_to_fp32)(codes, scales, out, n);
}
void unpack_int8(const std::int8_t* codes, const float* scales, std::uint16_t* bf16, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(int8_to_bf16)(codes, scales, bf16, n);
}
void unpack_int8(const std::int8_t* codes, const float* scales, Fp16* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(int8_to_fp16)(codes, scales, out, n);
}
void unpack_int8(const std::int8_t* codes, const float* scales, float* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(int8_to_fp32)(codes, scales, out, n);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
