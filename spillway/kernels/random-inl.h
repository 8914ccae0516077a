// The numbers of random.h, many at a time. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_RANDOM_INL_H_
#undef SPILLWAY_KERNELS_RANDOM_INL_H_
#else
#define SPILLWAY_KERNELS_RANDOM_INL_H_
#endif

#include "spillway/kernels/random.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// Values whose upper halves are bf16 as kernels::round_bf16_randomly makes them, if what is not a number is kFloatNaN
/// already.
template <class D>
HWY_INLINE Vec<Bits<D>> add_chance(D /*d*/, Vec<D> value, Vec<Bits<D>> chance) {
  const Bits<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto largest = hn::Eq(hn::And(bits, hn::Set(du, 0x7FFF0000)), hn::Set(du, 0x7F7F0000));
  return hn::Add(bits, hn::IfThenZeroElse(largest, chance));
}

/// The blocks from one on, a vector at a time.
class RandomBlocks {
#if HWY_TARGET == HWY_AVX3_DL
  using D = hn::ScalableTag<std::uint64_t>;
#else
  using D = hn::Full128<std::uint64_t>;  // where wider vectors would only be cut in halves for AES
#endif
  using D8 = hn::Repartition<std::uint8_t, D>;

 public:
  static constexpr std::size_t kBytes = hn::MaxLanes(D8());  ///< of a vector

  HWY_INLINE RandomBlocks(const RandomKey& key, std::uint64_t block) : key_(key) {
    HWY_ALIGN std::uint64_t counters[hn::MaxLanes(D())] = {}, strides[hn::MaxLanes(D())] = {};
    for (std::size_t i = 0; i < hn::MaxLanes(D()); i += 2) counters[i] = block + i / 2, strides[i] = kBytes / 16;
    counters_ = hn::Load(D(), counters), strides_ = hn::Load(D(), strides);
  }
  /// kBytes of them.
  HWY_INLINE void next(std::uint8_t* out) {
    auto x = hn::Xor(hn::BitCast(D8(), counters_), round_key(0));
    for (std::size_t round = 1; round <= kRandomRounds; ++round) x = hn::AESRound(x, round_key(round));
    hn::StoreU(x, D8(), out);
    counters_ = hn::Add(counters_, strides_);
  }

 private:
  [[nodiscard]] HWY_INLINE hn::VFromD<D8> round_key(std::size_t round) const {
    return hn::BitCast(D8(), hn::LoadDup128(D(), key_.rounds[round].data()));
  }

  const RandomKey& key_;
  hn::VFromD<D> counters_, strides_;
};

/// Numbers of 16 bits of up to kMax elements from any index on; `first` is where they begin.
template <std::size_t kMax>
struct Random {
  static constexpr std::size_t kBlock = kRandomBlock<std::uint16_t>;
  HWY_ALIGN std::uint16_t words[kMax + 2 * kBlock + RandomBlocks::kBytes / sizeof(std::uint16_t)];
  const std::uint16_t* first = words;

  /// What is drawn beyond n fills the room behind.
  HWY_INLINE void draw(const RandomKey& key, std::uint64_t index, std::size_t n) {
    auto blocks = begin(key, index);
    for (std::size_t i = 0; i < index % kBlock + n; i += kAtOnce) draw_at(blocks, i);
  }

  // The numbers can also be drawn in parts: begin() and then draw_at() for i = 0, kAtOnce, 2 kAtOnce, ... until `index
  // % kBlock + n`.
  static constexpr std::size_t kAtOnce = RandomBlocks::kBytes / sizeof(std::uint16_t);

  HWY_INLINE RandomBlocks begin(const RandomKey& key, std::uint64_t index) {
    first = words + index % kBlock;
    return RandomBlocks(key, index / kBlock);
  }
  HWY_INLINE void draw_at(RandomBlocks& blocks, std::size_t i) {
    blocks.next(reinterpret_cast<std::uint8_t*>(words + i));
  }
};

#endif

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
