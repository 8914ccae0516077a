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

template <Moment kMoment>
void encode_blocks(const float* values, std::uint8_t* codes, float* scales, std::size_t n) {
  Block block;
  for (std::size_t first = 0; first < n; first += kQuantBlock) {
    const std::size_t count = std::min(kQuantBlock, n - first);
    std::fill(block.values + count, block.values + kQuantBlock, 0.0f);
    for_each_vector<float>(count, [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(quiet(d, hn::LoadU(d, values + first + i)), d, block.values + i);
    });
    const float scale = scales[first / kQuantBlock] = block.scale<kMoment>();
    const float reciprocal = block_reciprocal(scale);
    for_each_vector<float>(count, [&](auto d, std::size_t i) HWY_ATTR {
      const auto value = hn::LoadU(d, block.values + i);
      const auto code = encode<kMoment>(d, value, reciprocal, hn::Set(Bits<decltype(d)>(), kCodeHalf));
      hn::StoreU(code, Byte<decltype(d)>(), codes + first + i);
    });
  }
}

template <Moment kMoment>
void decode_blocks(const std::uint8_t* codes, const float* scales, float* values, std::size_t n) {
  for (std::size_t first = 0; first < n; first += kQuantBlock) {
    const float scale = scales[first / kQuantBlock];
    for_each_vector<float>(std::min(kQuantBlock, n - first), [=](auto d, std::size_t i) HWY_ATTR {
      const auto code = hn::LoadU(Byte<decltype(d)>(), codes + first + i);
      hn::StoreU(quiet(d, decode<kMoment>(d, code, hn::Set(d, scale))), d, values + first + i);
    });
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
