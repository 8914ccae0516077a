#include "spillway/kernels/gradient.h"

#include <algorithm>

#include "spillway/kernels/lanes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/gradient.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

constexpr std::size_t kAhead = 512;

/// Floats that become one vector of doubles.
template <class DD>
using Narrow = hn::Rebind<float, DD>;

/// Adds the squares of one vector to its lanes. The square of a float is exact in double, so that it does not matter
/// whether the target fuses this.
template <class DD>
HWY_INLINE void add_squares(DD dd, Vec<Narrow<DD>> values, double* lanes) {
  const auto wide = hn::PromoteTo(dd, values);
  hn::StoreU(hn::MulAdd(wide, wide, hn::LoadU(dd, lanes)), dd, lanes);
}

/// The norm as scalar::norm_of adds it up; `take(tag, i)` writes a vector of elements from i on and returns it.
template <class Take>
HWY_INLINE double tile_sum(std::size_t begin, std::size_t end, const Take& take) {
  const hn::CappedTag<double, kNormLanes> dd;
  const hn::CappedTag<double, 1> one;
  HWY_ALIGN double lanes[kNormLanes] = {};
  std::size_t i = begin;
  for (; i + kNormLanes <= end; i += kNormLanes) {
    for (std::size_t lane = 0; lane < kNormLanes; lane += hn::Lanes(dd)) {
      add_squares(dd, take(Narrow<decltype(dd)>(), i + lane), lanes + lane);
    }
  }
  for (std::size_t lane = 0; i < end; ++i, ++lane) add_squares(one, take(Narrow<decltype(one)>(), i), lanes + lane);
  return tree_sum(lanes);
}

template <class Take>
HWY_INLINE Norm norm_of(std::size_t n, const Take& take) {
  double sum = 0;
  for (std::size_t tile = 0; tile < n; tile += kNormTile) sum += tile_sum(tile, std::min(n, tile + kNormTile), take);
  return {kernels::quiet(sum)};
}

Norm copy_norm_bf16(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](auto d, std::size_t i) HWY_ATTR {
    const Half<decltype(d)> dh;
    prefetch<kAhead>(in + i);
    const auto patterns = hn::LoadU(dh, in + i);
    hn::StoreU(patterns, dh, out + i);
    return widen(d, patterns);
  });
}

Norm copy_norm_fp32(const float* in, float* out, std::size_t n) {
  return norm_of(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    const auto values = hn::LoadU(d, in + i);
    hn::StoreU(values, d, out + i);
    return values;
  });
}

Norm round_norm(const float* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    const auto rounded = round_bf16(d, hn::LoadU(d, in + i));
    hn::StoreU(rounded, Half<decltype(d)>(), out + i);
    return widen(d, rounded);
  });
}

void widen_to(const std::uint16_t* in, float* sum, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    hn::StoreU(widen(d, hn::LoadU(Half<decltype(d)>(), in + i)), d, sum + i);
  });
}

void add_bf16(const std::uint16_t* in, float* sum, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    prefetch<kAhead>(sum + i);
    const auto values = widen(d, hn::LoadU(Half<decltype(d)>(), in + i));
    hn::StoreU(quiet(d, hn::Add(hn::LoadU(d, sum + i), values)), d, sum + i);
  });
}

void add_fp32(const float* in, float* sum, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    prefetch<kAhead>(sum + i);
    hn::StoreU(quiet(d, hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, in + i))), d, sum + i);
  });
}

Norm copy_norm_half(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](auto d, std::size_t i) HWY_ATTR {
    const Half<decltype(d)> dh;
    prefetch<kAhead>(in + i);
    const auto patterns = hn::LoadU(dh, in + i);
    hn::StoreU(patterns, dh, out + i);
    return widen_fp16(d, patterns);
  });
}

Norm round_norm_half(const float* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    const auto rounded = round_fp16(d, hn::LoadU(d, in + i));
    hn::StoreU(rounded, Half<decltype(d)>(), out + i);
    return widen_fp16(d, rounded);
  });
}

void widen_half(const std::uint16_t* in, float* sum, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    hn::StoreU(widen_fp16(d, hn::LoadU(Half<decltype(d)>(), in + i)), d, sum + i);
  });
}

void add_half(const std::uint16_t* in, float* sum, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(in + i);
    prefetch<kAhead>(sum + i);
    const auto values = widen_fp16(d, hn::LoadU(Half<decltype(d)>(), in + i));
    hn::StoreU(quiet(d, hn::Add(hn::LoadU(d, sum + i), values)), d, sum + i);
  });
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(copy_norm_bf16);
HWY_EXPORT(copy_norm_fp32);
HWY_EXPORT(round_norm);
HWY_EXPORT(widen_to);
HWY_EXPORT(add_bf16);
HWY_EXPORT(add_fp32);
HWY_EXPORT(copy_norm_half);
HWY_EXPORT(round_norm_half);
HWY_EXPORT(widen_half);
HWY_EXPORT(add_half);

Norm copy_norm(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(copy_norm_bf16)(in, out, n);
}

Norm copy_norm(const float* in, float* out, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(copy_norm_fp32)(in, out, n);
}

Norm round_norm(const float* in, std::uint16_t* out, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(round_norm)(in, out, n);
}

void widen(const std::uint16_t* in, float* sum, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(widen_to)(in, sum, n);
}

void add(const std::uint16_t* in, float* sum, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(add_bf16)(in, sum, n);
}

void add(const float* in, float* sum, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(add_fp32)(in, sum, n);
}

Norm copy_norm_fp16(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(copy_norm_half)(in, out, n);
}

Norm round_norm_fp16(const float* in, std::uint16_t* out, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(round_norm_half)(in, out, n);
}

void widen_fp16(const std::uint16_t* in, float* sum, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(widen_half)(in, sum, n);
}

void add_fp16(const std::uint16_t* in, float* sum, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(add_half)(in, sum, n);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
