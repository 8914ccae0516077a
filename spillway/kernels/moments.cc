#include "spillway/kernels/moments.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/moments.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/code8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(round_bf16(d, hn::LoadU(d, values + i)), Half<decltype(d)>(), bf16 + i);
  });
}

void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(quiet(d, widen(d, hn::LoadU(Half<decltype(d)>(), bf16 + i))), d, values + i);
  });
}

#if HWY_TARGET == HWY_SCALAR

using scalar::decode_int8;
using scalar::encode_int8;

#else

template <Moment kMoment>
void encode_blocks(const float* values, std::uint8_t* codes, float* scales, std::size_t n) {
  const hn::ScalableTag<float> d;
  const Bits<decltype(d)> du;
  HWY_ALIGN float block[kQuantBlock];
  HWY_ALIGN std::uint8_t coded[kQuantBlock];
  for (std::size_t first = 0; first < n; first += kQuantBlock) {
    const std::size_t count = std::min(kQuantBlock, n - first);
    std::copy_n(values + first, count, block);
    std::fill(block + count, block + kQuantBlock, 0.0f);
    auto largest = hn::Zero(du);
    for (std::size_t i = 0; i < kQuantBlock; i += hn::Lanes(d)) {
      const auto value = quiet(d, hn::Load(d, block + i));
      hn::Store(value, d, block + i);
      largest = hn::Max(largest, magnitude_bits(d, value));
    }
    Vec<decltype(d)> scale, factor;
    scale_for<kMoment>(d, largest, scale, factor);
    scales[first / kQuantBlock] = hn::GetLane(scale);
    const auto half = hn::Set(du, kCodeHalf);
    for (std::size_t i = 0; i < kQuantBlock; i += 2 * hn::Lanes(d)) {
      Vec<decltype(d)> even, odd;
      hn::LoadInterleaved2(d, block + i, even, odd);
      encode_pair<kMoment>(d, even, odd, factor, half, half, coded + i);
    }
    std::copy_n(coded, count, codes + first);
  }
}

template <Moment kMoment>
void decode_blocks(const std::uint8_t* codes, const float* scales, float* values, std::size_t n) {
  const hn::ScalableTag<float> d;
  HWY_ALIGN float block[kQuantBlock];
  HWY_ALIGN std::uint8_t coded[kQuantBlock] = {};
  for (std::size_t first = 0; first < n; first += kQuantBlock) {
    const std::size_t count = std::min(kQuantBlock, n - first);
    std::copy_n(codes + first, count, coded);
    const auto scale = hn::Set(d, scales[first / kQuantBlock]);
    for (std::size_t i = 0; i < kQuantBlock; i += 2 * hn::Lanes(d)) {
      Vec<decltype(d)> even, odd;
      decode_pair<kMoment>(d, coded + i, scale, even, odd);
      hn::StoreInterleaved2(quiet(d, even), quiet(d, odd), d, block + i);
    }
    std::copy_n(block, count, values + first);
  }
}

void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n) {
  const auto blocks = moment == Moment::first ? encode_blocks<Moment::first> : encode_blocks<Moment::second>;
  blocks(values, codes, scales, n);
}

void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n) {
  const auto blocks = moment == Moment::first ? decode_blocks<Moment::first> : decode_blocks<Moment::second>;
  blocks(codes, scales, values, n);
}

#endif

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(encode_bf16);
HWY_EXPORT(decode_bf16);
HWY_EXPORT(encode_int8);
HWY_EXPORT(decode_int8);

void encode_bf16(const float* values, std::uint16_t* bf16, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(encode_bf16)(values, bf16, n);
}

void decode_bf16(const std::uint16_t* bf16, float* values, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(decode_bf16)(bf16, values, n);
}

void encode_int8(Moment moment, const float* values, std::uint8_t* codes, float* scales, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(encode_int8)(moment, values, codes, scales, n);
}

void decode_int8(Moment moment, const std::uint8_t* codes, const float* scales, float* values, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(decode_int8)(moment, codes, scales, values, n);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
