#include "spillway/kernels/softmax.h"

#include <cmath>
#include <limits>

#include "spillway/kernels/lanes.h"
#include "spillway/kernels/softmax_exp.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/softmax.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/elements-inl.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

using Wide = hn::CappedTag<float, kSoftmaxLanes>;
using One = hn::CappedTag<float, 1>;

/// scalar::exp, a vector at a time.
template <class D>
HWY_INLINE Vec<D> exp(D d, Vec<D> x) {
  const Bits<D> du;
  const auto constant = [](float c) HWY_ATTR { return hn::Set(D(), c); };
  const auto magic = fused(d, x, constant(kLog2E), constant(kRoundMagic));
  const auto k = hn::Sub(magic, constant(kRoundMagic));
  const auto r = fused(d, k, constant(-kLn2Low), fused(d, k, constant(-kLn2High), x));
  auto p = fused(d, constant(kExpCoefficients[4]), r, constant(kExpCoefficients[3]));
  p = fused(d, p, r, constant(kExpCoefficients[2]));
  p = fused(d, p, r, constant(kExpCoefficients[1]));
  p = fused(d, p, r, constant(kExpCoefficients[0]));
  p = fused(d, fused(d, p, r, constant(1.0f)), r, constant(1.0f));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<23>(hn::BitCast(du, magic))));
  const auto high = hn::IfThenElse(hn::Gt(x, constant(kExpHighest)), constant(INFINITY), scaled);
  const auto flushed = hn::IfThenZeroElse(hn::Lt(x, constant(kExpLowest)), high);
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(du, kFloatNaN)), flushed);
}

/// The larger of both; `highest` where `x` is NaN.
template <class D>
HWY_INLINE Vec<D> larger(Vec<D> x, Vec<D> highest) {
  return hn::IfThenElse(hn::Gt(x, highest), x, highest);
}

/// The largest logit or `highest`. NaN is left out; the order of comparisons does not matter but for the sign of 0,
/// which SoftmaxFold removes.
template <class T>
HWY_INLINE float highest_of(const T* logits, std::size_t n, float highest) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Set(d, highest), b = a, c = a, e = a;  // four, to hide the latency of a comparison
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a = larger<Wide>(load(d, logits + i), a);
    b = larger<Wide>(load(d, logits + i + lanes), b);
    c = larger<Wide>(load(d, logits + i + 2 * lanes), c);
    e = larger<Wide>(load(d, logits + i + 3 * lanes), e);
  }
  a = larger<Wide>(larger<Wide>(a, b), larger<Wide>(c, e));
  highest = hn::GetLane(hn::MaxOfLanes(d, a));
  for (; i < n; ++i) highest = hn::GetLane(larger<One>(load(One(), logits + i), hn::Set(One(), highest)));
  return highest;
}

template <class D, class T>
HWY_INLINE void add_exponentials(D d, const T* logits, float shift, float* lanes) {
  const auto e = exp(d, hn::Sub(load(d, logits), hn::Set(d, shift)));
  hn::StoreU(hn::Add(hn::LoadU(d, lanes), e), d, lanes);
}

template <class T>
HWY_INLINE float exponentials_of(const T* logits, std::size_t n, float shift) {
  const Wide d;
  HWY_ALIGN float lanes[kSoftmaxLanes] = {};
  std::size_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    for (std::size_t lane = 0; lane < kSoftmaxLanes; lane += hn::Lanes(d)) {
      add_exponentials(d, logits + i + lane, shift, lanes + lane);
    }
  }
  for (std::size_t lane = 0; i < n; ++i, ++lane) add_exponentials(One(), logits + i, shift, lanes + lane);
  return tree_sum(lanes);
}

template <class T>
HWY_INLINE void stats(const T* logits, std::size_t n, float* maximum, float* sum) {
  const SoftmaxFold fold(*maximum, highest_of(logits, n, *maximum));
  *maximum = fold.maximum;
  *sum = fold.sum(*sum, exponentials_of(logits, n, fold.shift));
}

template <class T>
HWY_INLINE void gradient(T* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  const bool here = label < n;
  const auto at_label = here ? load(One(), logits + label) : hn::Zero(One());
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    const auto probability =
        exp(d, hn::Sub(hn::Sub(load(d, logits + i), hn::Set(d, norm.maximum)), hn::Set(d, norm.log_sum)));
    store(d, hn::Mul(probability, hn::Set(d, scale)), logits + i);
  });
  if (!here) return;
  const auto probability =
      exp(One(), hn::Sub(hn::Sub(at_label, hn::Set(One(), norm.maximum)), hn::Set(One(), norm.log_sum)));
  store(One(), hn::Mul(hn::Sub(probability, hn::Set(One(), 1.0f)), hn::Set(One(), scale)), logits + label);
}

void stats_bf16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  stats(logits, n, maximum, sum);
}
void stats_fp32(const float* logits, std::size_t n, float* maximum, float* sum) {
  stats(logits, n, maximum, sum);
}

void stats_fp16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  stats(reinterpret_cast<const Fp16*>(logits), n, maximum, sum);
}

void gradient_bf16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(logits, n, norm, scale, label);
}
void gradient_fp32(float* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(logits, n, norm, scale, label);
}
void gradient_fp16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(reinterpret_cast<Fp16*>(logits), n, norm, scale, label);
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(stats_bf16);
HWY_EXPORT(stats_fp32);
HWY_EXPORT(gradient_bf16);
HWY_EXPORT(gradient_fp32);
HWY_EXPORT(stats_fp16);
HWY_EXPORT(gradient_fp16);

void softmax_stats(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  HWY_DYNAMIC_DISPATCH(stats_bf16)(logits, n, maximum, sum);
}

void softmax_stats(const float* logits, std::size_t n, float* maximum, float* sum) {
  HWY_DYNAMIC_DISPATCH(stats_fp32)(logits, n, maximum, sum);
}

void softmax_gradient(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  HWY_DYNAMIC_DISPATCH(gradient_bf16)(logits, n, norm, scale, label);
}

void softmax_gradient(float* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  HWY_DYNAMIC_DISPATCH(gradient_fp32)(logits, n, norm, scale, label);
}

void softmax_stats_fp16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  HWY_DYNAMIC_DISPATCH(stats_fp16)(logits, n, maximum, sum);
}

void softmax_gradient_fp16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  HWY_DYNAMIC_DISPATCH(gradient_fp16)(logits, n, norm, scale, label);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
