// Per-target helpers on Highway vectors; included by each kernel after foreach_target.h, once per instruction set.
// Every helper gives the same bits on every target.
#if defined(SPILLWAY_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_SIMD_INL_H_
#undef SPILLWAY_KERNELS_SIMD_INL_H_
#else
#define SPILLWAY_KERNELS_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Half = hn::Rebind<std::uint16_t, D>;  ///< as many 16-bit patterns as D has floats
template <class D>
using Bits = hn::RebindToUnsigned<D>;
template <class D>
using Vec = hn::VFromD<D>;

// TruncateTo, but that Highway 1.0.3 takes wrong instructions for AVX3_DL.

template <class D>
HWY_INLINE Vec<Half<D>> low_halves(D, Vec<Bits<D>> words) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(D()) == 16) return Vec<Half<D>>{_mm512_cvtepi32_epi16(words.raw)};
  if constexpr (hn::MaxLanes(D()) == 8) return Vec<Half<D>>{_mm256_cvtepi32_epi16(words.raw)};
  if constexpr (hn::MaxLanes(D()) <= 4) return Vec<Half<D>>{_mm_cvtepi32_epi16(words.raw)};
#endif
  return hn::TruncateTo(Half<D>(), words);
}

/// The low bytes of half-words, of as many as a vector has.
template <class D16>
HWY_INLINE hn::VFromD<hn::Rebind<std::uint8_t, D16>> low_bytes(D16, hn::VFromD<D16> halves) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(D16()) == 32) {
    HWY_ALIGN static constexpr std::uint8_t kLow[64] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                        32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const auto low = _mm512_permutexvar_epi8(_mm512_load_si512(kLow), halves.raw);  // one operation, not two
    return hn::VFromD<hn::Rebind<std::uint8_t, D16>>{_mm512_castsi512_si256(low)};
  }
#endif
  return hn::TruncateTo(hn::Rebind<std::uint8_t, D16>(), halves);
}

/// Bits of `yes` where `mask` has ones, of `no` elsewhere.
template <class D>
HWY_INLINE Vec<Bits<D>> select_bits(D, Vec<Bits<D>> mask, Vec<Bits<D>> yes, Vec<Bits<D>> no) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfVecThenElse(mask, yes, no);
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

/// a * b + c, rounded once. Targets without the instruction ask the C library lane by lane: slow, the same bits.
template <class D>
HWY_INLINE Vec<D> fused(D d, Vec<D> a, Vec<D> b, Vec<D> c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  constexpr std::size_t lanes = hn::MaxLanes(D());
  HWY_ALIGN float x[lanes], y[lanes], z[lanes];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (std::size_t i = 0; i < lanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

/// Every NaN becomes kFloatNaN.
template <class D>
HWY_INLINE Vec<D> quiet(D d, Vec<D> v) {
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(Bits<D>(), kFloatNaN)), v);
}

/// Whether a or b has a NaN; it may say so of infinities too.
template <class D>
HWY_INLINE bool may_have_nan(D d, Vec<D> a, Vec<D> b) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) return _mm512_cmp_ps_mask(a.raw, b.raw, _CMP_UNORD_Q) != 0;
#endif
  return !hn::AllFalse(d, hn::IsNaN(hn::Add(a, b)));
}

template <class D>
HWY_INLINE Vec<D> widen(D d, Vec<Half<D>> bf16) {
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits<D>(), bf16)));
}

/// Nearest bf16, ties to even; NaN becomes kBf16NaN.
template <class D>
HWY_INLINE Vec<Half<D>> round_bf16(D d, Vec<D> v) {
  const Bits<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return low_halves(d, hn::ShiftRight<16>(hn::IfThenElse(nan, hn::Set(du, kFloatNaN), rounded)));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
#define SPILLWAY_NATIVE_FP16 1
#else
#define SPILLWAY_NATIVE_FP16 0
#endif

template <class D>
HWY_INLINE Vec<D> widen_fp16(D d, Vec<Half<D>> fp16) {
#if SPILLWAY_NATIVE_FP16
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), fp16));
#else
  constexpr std::size_t lanes = hn::MaxLanes(D());
  HWY_ALIGN std::uint16_t in[lanes];
  HWY_ALIGN float out[lanes];
  hn::Store(fp16, Half<D>(), in);
  for (std::size_t i = 0; i < lanes; ++i) out[i] = kernels::widen_fp16(in[i]);
  return hn::Load(d, out);
#endif
}

/// Nearest fp16, ties to even; NaN becomes kFp16NaN.
template <class D>
HWY_INLINE Vec<Half<D>> round_fp16(D d, Vec<D> v) {
#if SPILLWAY_NATIVE_FP16
  return hn::BitCast(Half<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), quiet(d, v)));
#else
  constexpr std::size_t lanes = hn::MaxLanes(D());
  HWY_ALIGN float in[lanes];
  HWY_ALIGN std::uint16_t out[lanes];
  hn::Store(v, d, in);
  for (std::size_t i = 0; i < lanes; ++i) out[i] = kernels::round_fp16(in[i]);
  return hn::Load(Half<D>(), out);
#endif
}

#undef SPILLWAY_NATIVE_FP16

/// Calls body(tag, index) for whole vectors of T and then, for what is left, for vectors of one lane.
template <class T, class Body>
HWY_INLINE void for_each_vector(std::size_t n, const Body& body) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(hn::CappedTag<T, 1>(), i);
}

/// Asks for the cache line `elements` further on. An address past the end of the array is only a hint that is ignored.
template <std::size_t elements, class T>
HWY_INLINE void prefetch(const T* p) {
  hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(p) + elements * sizeof(T)));
}

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
