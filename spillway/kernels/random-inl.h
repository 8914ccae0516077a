// The numbers of random.h, many at a time. Included after foreach_target.h.
#if defined(SPILLWAY_KERNELS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_KERNELS_RANDOM_INL_H_
#undef SPILLWAY_KERNELS_RANDOM_INL_H_
#else
#define SPILLWAY_KERNELS_RANDOM_INL_H_
#endif

#include <cstring>

#include "spillway/kernels/random.h"
#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {

/// Numbers of up to kMax elements from any index on; `first` is where they begin.
template <class Word, std::size_t kMax>
struct Random {
  static constexpr std::size_t kBlock = kRandomBlock<Word>, kSlack = 2 * HWY_MAX_BYTES / sizeof(Word);
  HWY_ALIGN Word words[kMax + kSlack];
  const Word* first = words;

  HWY_INLINE void draw(const RandomKey& key, std::uint64_t index, std::size_t n) {
    first = words + index % kBlock;
    draw_blocks(key, index / kBlock, (index % kBlock + n + kBlock - 1) / kBlock);
  }

 private:
#if HWY_TARGET == HWY_SCALAR
  void draw_blocks(const RandomKey& key, std::uint64_t block, std::size_t count) {
    for (std::size_t b = 0; b < count; ++b) {
      const auto numbers = scalar::random_block(key, block + b);
      std::memcpy(words + b * kBlock, numbers.data(), sizeof(numbers));
    }
  }
#else
#if HWY_TARGET == HWY_AVX3_DL
  using D = hn::ScalableTag<std::uint64_t>;
#else
  using D = hn::Full128<std::uint64_t>;  // where wider vectors would only be cut in halves for AES
#endif
  using D8 = hn::Repartition<std::uint8_t, D>;
  using V8 = hn::VFromD<D8>;

  static HWY_INLINE V8 round_key(const RandomKey& key, std::size_t round) {
    return hn::BitCast(D8(), hn::LoadDup128(D(), key.rounds[round].data()));
  }

  /// Two vectors at a time, to hide the latency of a round; what is drawn beyond `count` fills the slack.
  HWY_INLINE void draw_blocks(const RandomKey& key, std::uint64_t block, std::size_t count) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    HWY_ALIGN std::uint64_t counters[HWY_MAX_BYTES / sizeof(std::uint64_t)] = {};
    for (std::size_t i = 0; i < lanes; i += 2) counters[i] = block + i / 2;
    auto a = hn::Load(d, counters);
    HWY_ALIGN static constexpr std::uint64_t kOne[2] = {1, 0};
    auto stride = hn::LoadDup128(d, kOne);
    for (std::size_t i = lanes; i > 2; i /= 2) stride = hn::Add(stride, stride);
    const auto k0 = round_key(key, 0), k1 = round_key(key, 1), k2 = round_key(key, 2), k3 = round_key(key, 3),
               k4 = round_key(key, 4), k5 = round_key(key, 5);
    auto* out = reinterpret_cast<std::uint8_t*>(words);
    const auto* end = out + count * 16;
    for (; out + hn::Lanes(D8()) < end; out += 2 * hn::Lanes(D8())) {
      const auto b = hn::Add(a, stride);
      auto x = hn::AESRound(hn::Xor(hn::BitCast(D8(), a), k0), k1);
      auto y = hn::AESRound(hn::Xor(hn::BitCast(D8(), b), k0), k1);
      x = hn::AESRound(x, k2), y = hn::AESRound(y, k2);
      x = hn::AESRound(x, k3), y = hn::AESRound(y, k3);
      x = hn::AESRound(x, k4), y = hn::AESRound(y, k4);
      hn::Store(hn::AESRound(x, k5), D8(), out);
      hn::Store(hn::AESRound(y, k5), D8(), out + hn::Lanes(D8()));
      a = hn::Add(b, stride);
    }
    if (out < end) {
      const auto x = hn::AESRound(hn::AESRound(hn::Xor(hn::BitCast(D8(), a), k0), k1), k2);
      hn::Store(hn::AESRound(hn::AESRound(hn::AESRound(x, k3), k4), k5), D8(), out);
    }
  }
#endif
};

}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
