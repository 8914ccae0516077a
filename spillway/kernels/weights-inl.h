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

class SplitWeights {
 public:
  /// Two vectors are read at once: elements 0, 2, 4, ... and 1, 3, 5, ...: halves of words need no shuffle.
  static constexpr bool kPaired = HWY_TARGET != HWY_SCALAR;

  explicit SplitWeights(const UpdateSpan& span)
      : weight_(reinterpret_cast<std::uint16_t*>(span.weight)),
        rest_(reinterpret_cast<std::uint16_t*>(span.rest)),
        grad_(reinterpret_cast<const std::uint16_t*>(span.grad)) {}

  HWY_INLINE void prefetch_at(std::size_t i) const {
    prefetch<kAhead>(weight_ + i);
    prefetch<kAhead>(rest_ + i);
    prefetch<kAhead>(grad_ + i);
  }
  HWY_INLINE void prefetch_weight(std::size_t i) const {
    prefetch<0>(weight_ + i);
    prefetch<0>(rest_ + i);
  }
  template <class D>
  HWY_INLINE Vec<D> gradient(D d, std::size_t i) const {
    return widen(d, hn::LoadU(Half<D>(), grad_ + i));
  }
  template <class D>
  HWY_INLINE void load_pair(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
    join_pair(d, weight_ + i, rest_ + i, even, odd);
  }
  template <class D>
  HWY_INLINE void store_pair(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
    split_pair(d, even, odd, weight_ + i, rest_ + i);
  }
  template <class D>
  HWY_INLINE Vec<D> load(D d, std::size_t i) const {
    return hn::BitCast(d, join_bits(d, hn::LoadU(Half<D>(), weight_ + i), hn::LoadU(Half<D>(), rest_ + i)));
  }
  template <class D>
  HWY_INLINE void store(D d, std::size_t i, Vec<D> weight) const {
    split_bits(d, hn::BitCast(Bits<D>(), weight), weight_ + i, rest_ + i);
  }

 private:
  std::uint16_t* weight_;
  std::uint16_t* rest_;
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
  HWY_INLINE Vec<D> gradient(D d, std::size_t i) const {
    return hn::LoadU(d, grad_ + i);
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
        master_(reinterpret_cast<float*>(span.rest)),
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
  HWY_INLINE Vec<D> gradient(D d, std::size_t i) const {
    return widen_fp16(d, hn::LoadU(Half<D>(), grad_ + i));
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
