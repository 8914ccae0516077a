// How moments lie (kernels::Moments): one class for each. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_MOMENTS_INL_H_
#undef SPILLWAY_KERNELS_MOMENTS_INL_H_
#else
#define SPILLWAY_KERNELS_MOMENTS_INL_H_
#endif

#include <algorithm>
#include <array>

#include "spillway/kernels/code8-inl.h"
#include "spillway/kernels/random-inl.h"
#include "spillway/kernels/weights-inl.h"

// Each class has a tile, the elements it looks at together; open(tile, n) says what the next vectors belong to and
// gives the pointers to work with, by value, so that they stay in registers; close() ends the tile.

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

template <std::size_t kMoments>
class Fp32Moments {
 public:
  static constexpr Moments kForm = Moments::fp32;
  static constexpr std::size_t kTile = std::size_t{1} << 62;

  struct Fields {
    std::array<float*, kMoments> data;

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (float* p : data) prefetch<kAhead>(p + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE Vec<D> load(D d, std::size_t i) const {
      return hn::LoadU(d, data[k] + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value) const {
      hn::StoreU(value, d, data[k] + i);
    }
  };

  Fp32Moments(const UpdateSpan& span, const UpdateStep& /*step*/) {
    for (std::size_t k = 0; k < kMoments; ++k) fields_.data[k] = reinterpret_cast<float*>(span.moments[k]);
  }
  HWY_INLINE Fields open(std::size_t /*tile*/, std::size_t /*n*/) const { return fields_; }
  HWY_INLINE void close(std::size_t /*tile*/, std::size_t /*n*/) const {}

 private:
  Fields fields_;
};

template <std::size_t kMoments>
class Bf16Moments {
 public:
  static constexpr Moments kForm = Moments::bf16;
  static constexpr std::size_t kTile = 256;

  struct Fields {
    std::array<std::uint16_t*, kMoments> data;
    const std::uint32_t* random;

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (std::uint16_t* p : data) prefetch<kAhead>(p + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE Vec<D> load(D d, std::size_t i) const {
      return widen(d, hn::LoadU(Half<D>(), data[k] + i));
    }
    /// As kernels::round_bf16_randomly; what is not a number is kFloatNaN already.
    template <std::size_t k, class D>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value) const {
      const Bits<D> du;
      const auto bits = hn::BitCast(du, value), word = hn::LoadU(du, random + i);
      const auto chance = k == 0 ? hn::And(word, hn::Set(du, 0xFFFF)) : hn::ShiftRight<16>(word);
      const auto largest = hn::Eq(hn::And(bits, hn::Set(du, 0x7FFF0000)), hn::Set(du, 0x7F7F0000));
      const auto rounded = hn::Add(bits, hn::IfThenZeroElse(largest, chance));
      hn::StoreU(low_halves(d, hn::ShiftRight<16>(rounded)), Half<D>(), data[k] + i);
    }
  };

  Bf16Moments(const UpdateSpan& span, const UpdateStep& step) : key_(step.seed, step.step), index_(span.index) {
    for (std::size_t k = 0; k < kMoments; ++k) data_[k] = reinterpret_cast<std::uint16_t*>(span.moments[k]);
  }
  HWY_INLINE Fields open(std::size_t tile, std::size_t n) {
    random_.draw(key_, index_ + tile, n);
    Fields fields = {data_, random_.first};
    for (auto& p : fields.data) p += tile;
    return fields;
  }
  HWY_INLINE void close(std::size_t /*tile*/, std::size_t /*n*/) const {}

 private:
  RandomKey key_;
  std::uint64_t index_;
  std::array<std::uint16_t*, kMoments> data_;
  Random<kTile> random_;
};

template <std::size_t kMoments>
class Int8Moments {
 public:
  static constexpr Moments kForm = Moments::int8;
  static constexpr std::size_t kTile = kQuantBlock;
  static constexpr Moment moment_of(std::size_t k) { return k == 0 ? Moment::first : Moment::second; }

  struct Fields {
    std::array<std::uint8_t*, kMoments> data;
    std::array<float, kMoments> scale;
    Block* blocks;

    HWY_INLINE void prefetch_at(std::size_t i) const {
      for (std::uint8_t* p : data) prefetch<kAhead>(p + i);
    }
    template <std::size_t k, class D>
    HWY_INLINE Vec<D> load(D d, std::size_t i) const {
      return decode<moment_of(k)>(d, hn::LoadU(Byte<D>(), data[k] + i), hn::Set(d, scale[k]));
    }
    template <std::size_t k, class D>
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value) const {
      hn::StoreU(value, d, blocks[k].values + i);
    }
  };

  Int8Moments(const UpdateSpan& span, const UpdateStep& step) : key_(step.seed, step.step), index_(span.index) {
    for (std::size_t k = 0; k < kMoments; ++k) {
      data_[k] = reinterpret_cast<std::uint8_t*>(span.moments[k]);
      scales_[k] = span.scales[k];
    }
  }
  HWY_INLINE Fields open(std::size_t tile, std::size_t n) {
    random_.draw(key_, index_ + tile, n);
    Fields fields = {data_, {}, blocks_};
    for (std::size_t k = 0; k < kMoments; ++k) {
      fields.data[k] += tile;
      fields.scale[k] = scales_[k][tile / kTile];
      std::fill(blocks_[k].values + n, blocks_[k].values + kTile, 0.0f);
    }
    return fields;
  }
  HWY_INLINE void close(std::size_t tile, std::size_t n) {
    close_moment<0>(tile, n);
    if constexpr (kMoments == 2) close_moment<1>(tile, n);
  }

 private:
  template <std::size_t k>
  HWY_INLINE void close_moment(std::size_t tile, std::size_t n) {
    constexpr Moment moment = moment_of(k);
    const float scale = blocks_[k].template scale<moment>();
    scales_[k][tile / kTile] = scale;
    const std::uint32_t* random = random_.first;
    blocks_[k].template encode_to<moment>(data_[k] + tile, n, scale, [=](auto du, std::size_t i) HWY_ATTR {
      const auto word = hn::LoadU(du, random + i);
      if constexpr (k == 0) return hn::ShiftRight<32 - kCodeShift>(word);
      return hn::And(word, hn::Set(du, kCodeRandomMask));
    });
  }

  RandomKey key_;
  std::uint64_t index_;
  std::array<std::uint8_t*, kMoments> data_;
  std::array<float*, kMoments> scales_;
  Random<kTile> random_;
  Block blocks_[kMoments];
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
