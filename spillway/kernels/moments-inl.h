// How moments lie (kernels::Moments): one class for each. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_MOMENTS_INL_H_
#undef SPILLWAY_KERNELS_MOMENTS_INL_H_
#else
#define SPILLWAY_KERNELS_MOMENTS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <type_traits>

#include "spillway/kernels/code8-inl.h"
#include "spillway/kernels/random-inl.h"
#include "spillway/kernels/weights-inl.h"

// Each class has a tile, the elements it looks at together; open(tile, n) says what the next vectors belong to and
// gives the pointers to work with, by value, so that they stay in registers; close() ends the tile. seen() begins what
// the stores of a tile gather of each moment, in a register.

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

struct Unseen {};  ///< nothing is gathered

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
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value, Unseen&) const {
      hn::StoreU(value, d, data[k] + i);
    }
  };

  Fp32Moments(const UpdateSpan& span, const UpdateStep& /*step*/) {
    for (std::size_t k = 0; k < kMoments; ++k) fields_.data[k] = reinterpret_cast<float*>(span.moments[k]);
  }
  static HWY_INLINE Unseen seen() { return {}; }
  HWY_INLINE Fields open(std::size_t /*tile*/, std::size_t /*n*/) const { return fields_; }
  HWY_INLINE void close(std::size_t /*tile*/, std::size_t /*n*/, Unseen, Unseen) const {}

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
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value, Unseen&) const {
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
  static HWY_INLINE Unseen seen() { return {}; }
  HWY_INLINE Fields open(std::size_t tile, std::size_t n) {
    random_.draw(key_, index_ + tile, n);
    Fields fields = {data_, random_.first};
    for (auto& p : fields.data) p += tile;
    return fields;
  }
  HWY_INLINE void close(std::size_t /*tile*/, std::size_t /*n*/, Unseen, Unseen) const {}

 private:
  RandomKey key_;
  std::uint64_t index_;
  std::array<std::uint16_t*, kMoments> data_;
  Random<std::uint32_t, kTile> random_;
};

template <std::size_t kMoments>
class Int8Moments {
 public:
  static constexpr Moments kForm = Moments::int8;
  static constexpr std::size_t kTile = kQuantBlock;
  static constexpr Moment moment_of(std::size_t k) { return k == 0 ? Moment::first : Moment::second; }

  using Largest = Vec<hn::ScalableTag<std::uint32_t>>;  ///< magnitudes, of whole vectors

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
    HWY_INLINE void store(D d, std::size_t i, Vec<D> value, Largest& largest) const {
      hn::StoreU(value, d, blocks[k].values + i);
      if constexpr (std::is_same_v<D, hn::ScalableTag<float>>) {  // second moments have no sign
        largest = hn::Max(largest, k == 0 ? magnitude_bits(d, value) : hn::BitCast(Bits<D>(), value));
      }
    }
    /// The code of element i of the tile, from its block.
    template <std::size_t k, class D>
    HWY_INLINE void encode_at(D d, std::size_t tile, std::size_t i, float reciprocal,
                              const std::uint16_t* random) const {
      const auto chance = hn::ShiftLeft<kChanceShift>(hn::PromoteTo(Bits<D>(), hn::LoadU(Half<D>(), random + i + k)));
      const auto value = hn::LoadU(d, blocks[k].values + i);
      hn::StoreU(encode<moment_of(k)>(d, value, reciprocal, chance), Byte<D>(), data[k] + tile + i);
    }
  };

  Int8Moments(const UpdateSpan& span, const UpdateStep& step) : key_(step.seed, step.step), index_(span.index) {
    for (std::size_t k = 0; k < kMoments; ++k) {
      data_[k] = reinterpret_cast<std::uint8_t*>(span.moments[k]);
      scales_[k] = span.scales[k];
    }
  }
  static HWY_INLINE Largest seen() { return hn::Zero(hn::ScalableTag<std::uint32_t>()); }
  HWY_INLINE Fields open(std::size_t tile, std::size_t n) {
    random_.draw(key_, index_ + tile, n + 1);
    Fields fields = {data_, {}, blocks_};
    for (std::size_t k = 0; k < kMoments; ++k) {
      fields.data[k] += tile;
      fields.scale[k] = scales_[k][tile / kTile];
      std::fill(blocks_[k].values + n, blocks_[k].values + kTile, 0.0f);
    }
    return fields;
  }
  HWY_INLINE void close(std::size_t tile, std::size_t n, Largest first, Largest second) {
    float scale[] = {scale_for<Moment::first>(first), scale_for<Moment::second>(second)};
    if (n < kTile) {  // the last vectors were short
      scale[0] = blocks_[0].template scale<Moment::first>();
      scale[1] = blocks_[kMoments - 1].template scale<Moment::second>();
    }
    std::array<float, 2> reciprocal;
    for (std::size_t k = 0; k < kMoments; ++k) {
      scales_[k][tile / kTile] = scale[k];
      reciprocal[k] = block_reciprocal(scale[k]);
    }
    const Fields to = {data_, {}, blocks_};
    const std::uint16_t* random = random_.first;
    for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
      to.template encode_at<0>(d, tile, i, reciprocal[0], random);
      if constexpr (kMoments == 2) to.template encode_at<1>(d, tile, i, reciprocal[1], random);
    });
  }

 private:
  RandomKey key_;
  std::uint64_t index_;
  std::array<std::uint8_t*, kMoments> data_;
  std::array<float*, kMoments> scales_;
  Random<std::uint16_t, kTile + 1> random_;
  Block blocks_[kMoments];
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
