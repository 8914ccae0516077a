// How weights and gradients lie (kernels::Weights): one class for each. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_WEIGHTS_INL_H_
#undef SPILLWAY_KERNELS_WEIGHTS_INL_H_
#else
#define SPILLWAY_KERNELS_WEIGHTS_INL_H_
#endif

#include "spillway/kernels/split-inl.h"
#include "spillway/kernels/update.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

/// The distance at which memory answers in time on the machines measured; 256 to 768 elements do equally well.
inline constexpr std::size_t kAhead = 384;

// A pair: two vectors, of elements 0, 2, 4, ... and of 1, 3, 5, ...

class SplitWeights {
 public:
  static constexpr bool kPaired = HWY_TARGET != HWY_SCALAR;  ///< pairs are cheaper: halves of words need no shuffle

  explicit SplitWeights(const UpdateSpan& span)
      : weight_(reinterpret_cast<std::uint16_t*>(span.weight)),
        remainder_(reinterpret_cast<std::uint16_t*>(span.remainder)),
        grad_(reinterpret_cast<const std::uint16_t*>(span.grad)) {}

  HWY_INLINE void prefetch_at(std::size_t i) const {
    prefetch<kAhead>(weight_ + i);
    prefetch<kAhead>(remainder_ + i);
    prefetch<kAhead>(grad_ + i);
  }
  HWY_INLINE void prefetch_weight(std::size_t i) const {
    prefetch<0>(weight_ + i);
    prefetch<0>(remainder_ + i);
  }
  template <class D>
  HWY_INLINE void load_gradients(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    widen_pair(d, grad_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void load_pair(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    join_pair(d, weight_ + i, remainder_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void store_pair(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
    split_pair(d, even, odd, weight_ + i, remainder_ + i);
  }
  template <class D>
  HWY_INLINE Vec<D> load(D d, std::size_t i) const {
    return hn::BitCast(d, join_bits(d, hn::LoadU(Half<D>(), weight_ + i), hn::LoadU(Half<D>(), remainder_ + i)));
  }
  template <class D>
  HWY_INLINE void store(D d, std::size_t i, Vec<D> weight) const {
    split_bits(d, hn::BitCast(Bits<D>(), weight), weight_ + i, remainder_ + i);
  }

 private:
  std::uint16_t* weight_;
  std::uint16_t* remainder_;
  const std::uint16_t* grad_;
};

class Fp32Weights {
 public:
  static constexpr bool kPaired = false;

  explicit Fp32Weights(const UpdateSpan& span)
      : weight_(reinterpret_cast<float*>(span.weight)), grad_(reinterpret_cast<const float*>(span.grad)) {}

  HWY_INLINE void prefetch_at(std::size_t i) const {
    prefetch<kAhead>(weight_ + i);
    prefetch<kAhead>(grad_ + i);
  }
  HWY_INLINE void prefetch_weight(std::size_t i) const { prefetch<0>(weight_ + i); }
  template <class D>
  HWY_INLINE void load_gradients(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    hn::LoadInterleaved2(d, grad_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void load_pair(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    hn::LoadInterleaved2(d, weight_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void store_pair(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
    hn::StoreInterleaved2(even, odd, d, weight_ + i);
  }
  template <class D>
  HWY_INLINE Vec<D> load(D d, std::size_t i) const {
    return hn::LoadU(d, weight_ + i);
  }
  template <class D>
  HWY_INLINE void store(D d, std::size_t i, Vec<D> weight) const {
    hn::StoreU(weight, d, weight_ + i);
  }

 private:
  float* weight_;
  const float* grad_;
};

class Fp16Weights {
 public:
  static constexpr bool kPaired = false;

  explicit Fp16Weights(const UpdateSpan& span)
      : weight_(reinterpret_cast<std::uint16_t*>(span.weight)),
        master_(reinterpret_cast<float*>(span.remainder)),
        grad_(reinterpret_cast<const std::uint16_t*>(span.grad)) {}

  HWY_INLINE void prefetch_at(std::size_t i) const {
    prefetch<kAhead>(weight_ + i);
    prefetch<kAhead>(master_ + i);
    prefetch<kAhead>(grad_ + i);
  }
  HWY_INLINE void prefetch_weight(std::size_t i) const {
    prefetch<0>(weight_ + i);
    prefetch<0>(master_ + i);
  }
  template <class D>
  HWY_INLINE void load_gradients(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    const auto low = widen_fp16(d, hn::LoadU(Half<D>(), grad_ + i));
    const auto high = widen_fp16(d, hn::LoadU(Half<D>(), grad_ + i + hn::Lanes(d)));
    separate(d, low, high, even, odd);
  }
  template <class D>
  HWY_INLINE void load_pair(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    hn::LoadInterleaved2(d, master_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void store_pair(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
    hn::StoreInterleaved2(even, odd, d, master_ + i);
    for (const std::size_t at : {i, i + hn::Lanes(d)}) {
      hn::StoreU(round_fp16(d, hn::LoadU(d, master_ + at)), Half<D>(), weight_ + at);
    }
  }
  template <class D>
  HWY_INLINE Vec<D> load(D d, std::size_t i) const {
    return hn::LoadU(d, master_ + i);
  }
  template <class D>
  HWY_INLINE void store(D d, std::size_t i, Vec<D> weight) const {
    hn::StoreU(weight, d, master_ + i);
    hn::StoreU(round_fp16(d, weight), Half<D>(), weight_ + i);
  }

 private:
  std::uint16_t* weight_;
  float* master_;
  const std::uint16_t* grad_;
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
