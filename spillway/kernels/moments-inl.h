// How moments lie (kernels::Moments): one class for each. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_MOMENTS_INL_H_
#undef SPILLWAY_KERNELS_MOMENTS_INL_H_
#else
#define SPILLWAY_KERNELS_MOMENTS_INL_H_
#endif

#include <array>

#include "spillway/kernels/code8-inl.h"
#include "spillway/kernels/random-inl.h"
#include "spillway/kernels/weights-inl.h"

// Pairs of vectors hold elements 0, 2, 4, ... and 1, 3, 5, ... Each class works on tiles of kTile elements: open(tile)
// gives the pointers to work with, by value, so that they stay in registers.

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

inline constexpr std::size_t kTile = kQuantBlock;

template <std::size_t kMoments>
class Fp32Moments {
 public:
  static constexpr Moments kForm = Moments::exact;

  struct Fields {
    std::array<float*, kMoments> data;

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (float* p : data) prefetch<kAhead>(p + i), prefetch<kAhead + 16>(p + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE void load(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
      hn::LoadInterleaved2(d, data[k] + i, even, odd);
    }
    template <std::size_t k, class D>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
      hn::StoreInterleaved2(even, odd, d, data[k] + i);
    }
  };

  Fp32Moments(const UpdateSpan& span, const UpdateStep& /*step*/) {
    for (std::size_t k = 0; k < kMoments; ++k) data_[k] = reinterpret_cast<float*>(span.moments[k]);
  }
  HWY_INLINE Fields open(std::size_t tile) const {
    Fields fields = {data_};
    for (auto& p : fields.data) p += tile;
    return fields;
  }

 private:
  std::array<float*, kMoments> data_;
};

template <std::size_t kMoments>
class Bf16Moments {
 public:
  static constexpr Moments kForm = Moments::bf16;

  struct Fields {
    std::array<std::uint16_t*, kMoments> data;
    const std::uint16_t* random;

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (std::uint16_t* p : data) prefetch<kAhead>(p + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE void load(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
      widen_pair(d, data[k] + i, even, odd);
    }
    template <std::size_t k, class D>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> even, Vec<D> odd) const {
      const Bits<D> du;
      const hn::Repartition<std::uint16_t, D> halves;
      const auto mask = hn::Set(du, 0xFFFF), chances = hn::BitCast(du, hn::LoadU(halves, random + i + k));
      const auto low = hn::ShiftRight<16>(add_chance(d, even, hn::And(chances, mask)));
      const auto high = add_chance(d, odd, hn::ShiftRight<16>(chances));
      hn::StoreU(hn::BitCast(halves, select_bits(d, mask, low, high)), halves, data[k] + i);
    }
  };

  Bf16Moments(const UpdateSpan& span, const UpdateStep& step) : key_(step.seed, step.step), index_(span.index) {
    for (std::size_t k = 0; k < kMoments; ++k) data_[k] = reinterpret_cast<std::uint16_t*>(span.moments[k]);
  }
  HWY_INLINE Fields open(std::size_t tile) {
    random_.draw(key_, index_ + tile, kTile + kMoments - 1);
    Fields fields = {data_, random_.first};
    for (auto& p : fields.data) p += tile;
    return fields;
  }

 private:
  RandomKey key_;
  std::uint64_t index_;
  std::array<std::uint16_t*, kMoments> data_;
  Random<kTile + 1> random_;
};

/// A block of int8 moments between its codes: what is known only of the whole block, its scales, lies between two
/// loops over it. Pairs lie apart: the even vector first.
template <std::size_t kMoments>
class Int8Moments {
 public:
  static constexpr Moments kForm = Moments::int8;
  static constexpr Moment moment_of(std::size_t k) { return k == 0 ? Moment::first : Moment::second; }

  using D = hn::ScalableTag<float>;
  using Largest = Vec<Bits<D>>;  ///< magnitudes

  /// Two numbers of 16 bits for a pair of elements, as a word: the first moment of the one is rounded with its lower
  /// bits, of the other with its upper bits, the second moments the other way round.
  struct Chances {
    Vec<Bits<D>> low, high;
  };
  static HWY_INLINE Chances chances(const std::uint16_t* random) {
    const auto word = hn::BitCast(Bits<D>(), hn::LoadU(hn::Repartition<std::uint16_t, D>(), random));
    return {hn::And(word, hn::Set(Bits<D>(), kChanceMask)), hn::ShiftRight<32 - kCodeShift>(word)};
  }

  struct Fields {
    HWY_INLINE Fields() {}  // an implicit constructor lacks the target of this file on 64-bit ARM
    std::array<std::uint8_t*, kMoments> codes;
    Vec<D> factor[kMoments];  ///< scales to load with, their reciprocals to store with

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (std::uint8_t* p : codes) prefetch<kAhead>(p + i);
    }
    template <std::size_t k>
    HWY_INLINE void load(D d, std::size_t i, Vec<D>& even, Vec<D>& odd) const {
      decode_pair<moment_of(k)>(d, codes[k] + i, factor[k], even, odd);
    }
    /// Gathers what the scale needs.
    template <std::size_t k>
    static HWY_INLINE void see(D d, Vec<D> even, Vec<D> odd, Largest& largest) {
      for (const auto value : {even, odd}) {  // second moments have no sign
        largest = hn::Max(largest, k == 0 ? magnitude_bits(d, value) : hn::BitCast(Bits<D>(), value));
      }
    }
    template <std::size_t k>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> even, Vec<D> odd, const Chances& chances) const {
      encode_pair<moment_of(k)>(d, even, odd, factor[k], k == 0 ? chances.low : chances.high,
                                k == 0 ? chances.high : chances.low, codes[k] + i);
    }
  };

  explicit Int8Moments(const UpdateSpan& span) {
    for (std::size_t k = 0; k < kMoments; ++k) {
      codes_[k] = reinterpret_cast<std::uint8_t*>(span.moments[k]);
      scales_[k] = span.scales[k];
    }
  }
  static HWY_INLINE Largest seen() { return hn::Zero(Bits<D>()); }
  /// To load from.
  HWY_INLINE Fields open(std::size_t tile) const {
    Fields fields;
    for (std::size_t k = 0; k < kMoments; ++k) {
      fields.codes[k] = codes_[k] + tile;
      fields.factor[k] = hn::Set(D(), scales_[k][tile / kTile]);
    }
    return fields;
  }
  /// To store to.
  HWY_INLINE Fields close(std::size_t tile, Largest first, Largest second) const {
    Fields fields;
    Vec<D> scale[2], reciprocal[2];
    scale_for<Moment::first>(D(), first, scale[0], reciprocal[0]);
    scale_for<Moment::second>(D(), second, scale[1], reciprocal[1]);
    for (std::size_t k = 0; k < kMoments; ++k) {
      fields.codes[k] = codes_[k] + tile;
      fields.factor[k] = reciprocal[k];
      scales_[k][tile / kTile] = hn::GetLane(scale[k]);
    }
    return fields;
  }

 private:
  std::array<std::uint8_t*, kMoments> codes_;
  std::array<float*, kMoments> scales_;
};

#endif  // not the scalar target

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
