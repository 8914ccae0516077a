// The numbers of stochastic rounding, and what rounding with them does: known answers, unbiased, uncorrelated.
#include "spillway/kernels/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/code8.h"
#include "spillway/kernels/update.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

constexpr std::size_t kCount = 1 << 18;

/// The words of `n` elements from `index` on.
std::vector<std::uint32_t> words(std::uint64_t seed, std::int64_t step, std::uint64_t index, std::size_t n = kCount) {
  const RandomKey key(seed, step);
  std::vector<std::uint32_t> all;
  for (std::uint64_t block = index / kRandomBlock<std::uint32_t>; all.size() < n; ++block) {
    for (const std::uint32_t word : scalar::random_block(key, block)) all.push_back(word);
  }
  return all;
}

/// Of uniform numbers in [0, 2^bits): the product of both, centred, over its standard deviation.
template <class A, class B>
double correlation(const A& a, const B& b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += (a(i) - 0.5) * (b(i) - 0.5);
  return sum / static_cast<double>(n) * 12 * std::sqrt(static_cast<double>(n));
}

double low(std::uint32_t word) {
  return ((word & 0xFFFF) + 0.5) / 65536;
}
double high(std::uint32_t word) {
  return ((word >> 16) + 0.5) / 65536;
}

// FIPS 197, appendix B: the first round.
TEST(Random, RoundIsThatOfAes) {
  const std::uint8_t start[] = {0x19, 0x3d, 0xe3, 0xbe, 0xa0, 0xf4, 0xe2, 0x2b,
                                0x9a, 0xc6, 0x8d, 0x2a, 0xe9, 0xf8, 0x48, 0x08};
  const std::uint8_t key[] = {0xa0, 0xfa, 0xfe, 0x17, 0x88, 0x54, 0x2c, 0xb1,
                              0x23, 0xa3, 0x39, 0x39, 0x2a, 0x6c, 0x76, 0x05};
  const std::uint8_t end[] = {0xa4, 0x9c, 0x7f, 0xf2, 0x68, 0x9f, 0x35, 0x2b,
                              0x6b, 0x5b, 0xea, 0x43, 0x02, 0x6a, 0x50, 0x49};
  std::array<std::uint64_t, 2> state, round_key;
  std::memcpy(state.data(), start, 16);
  std::memcpy(round_key.data(), key, 16);
  const auto result = scalar::aes_round(state, round_key);
  EXPECT_EQ(std::memcmp(result.data(), end, 16), 0);
}

TEST(Random, EveryBitIsSetHalfOfTheTime) {
  for (const std::uint64_t seed : {0, 1}) {
    const auto all = words(seed, 1, 0);
    for (int bit = 0; bit < 32; ++bit) {
      std::size_t ones = 0;
      for (const std::uint32_t word : all) ones += word >> bit & 1;
      EXPECT_LT(std::abs(static_cast<double>(ones) - kCount / 2.0), 5 * std::sqrt(kCount / 4.0)) << "bit " << bit;
    }
  }
}

TEST(Random, BytesAreUniform) {
  const auto all = words(7, 3, 1 << 20);
  for (int shift = 0; shift < 32; shift += 8) {
    std::vector<double> counts(256);
    for (const std::uint32_t word : all) counts[word >> shift & 0xFF] += 1;
    double chi2 = 0;
    for (const double count : counts) chi2 += (count - kCount / 256.0) * (count - kCount / 256.0) / (kCount / 256.0);
    EXPECT_LT(std::abs(chi2 - 255), 5 * std::sqrt(2 * 255.0));  // mean and deviation of a chi-square
  }
}

// Neighbours, the two moments of an element, steps and seeds that follow each other, blocks far apart.
TEST(Random, NothingIsCorrelated) {
  const auto a = words(5, 10, 0), step = words(5, 11, 0), seed = words(6, 10, 0), far = words(5, 10, 1ULL << 40);
  for (const std::size_t lag : {1, 2, 3, 4, 8, 64, 256, 4096}) {
    const auto at = [&](std::size_t i) { return low(a[i]); };
    const auto later = [&](std::size_t i) { return low(a[i + lag]); };
    EXPECT_LT(std::abs(correlation(at, later, kCount - lag)), 5) << "lag " << lag;
  }
  const auto lows = [](const auto& all) { return [&all](std::size_t i) { return low(all[i]); }; };
  EXPECT_LT(std::abs(correlation(
                lows(a), [&](std::size_t i) { return high(a[i]); }, kCount)),
            5);
  for (const auto* other : {&step, &seed, &far}) {
    EXPECT_LT(std::abs(correlation(lows(a), lows(*other), kCount)), 5);
    EXPECT_LT(std::abs(correlation([&](std::size_t i) { return high(a[i]); },
                                   [&](std::size_t i) { return high((*other)[i]); }, kCount)),
              5);
  }
}

// Eight of them are the four words; that of the next element knows nothing of an element's own.
TEST(Random, HalfWordsAreThoseOfTheBlocksAndNotCorrelated) {
  const RandomKey key(5, 10);
  const auto all = words(5, 10, 0, kCount / 2);
  std::vector<double> halves(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint16_t half = scalar::random16(key, i);
    ASSERT_EQ(half, static_cast<std::uint16_t>(all[i / 2] >> (i % 2 * 16))) << "element " << i;
    halves[i] = (half + 0.5) / 65536;
  }
  for (const std::size_t lag : {1, 2, 7, 8, 9, 256}) {
    const auto at = [&](std::size_t i) { return halves[i]; };
    const auto later = [&](std::size_t i) { return halves[i + lag]; };
    EXPECT_LT(std::abs(correlation(at, later, kCount - lag)), 5) << "lag " << lag;
  }
}

// The two moments of an element, and neighbours.
TEST(Random, ChancesOfCodesAreBelowAStepAndNotCorrelated) {
  const RandomKey key(7, 3);
  std::vector<double> chances[2];
  for (std::size_t pair = 0; pair < kCount / 8; ++pair) {
    const auto even = scalar::random16(key, 2 * pair), odd = scalar::random16(key, 2 * pair + 1);
    for (const bool upper : {false, true}) {
      const auto chance = code_chance(even, odd, upper);
      ASSERT_LE(chance, kChanceMask);
      chances[upper].push_back((chance + 0.5) / (kChanceMask + 1.0));
    }
  }
  EXPECT_LT(std::abs(correlation([&](std::size_t i) { return chances[0][i]; },
                                 [&](std::size_t i) { return chances[1][i]; }, kCount / 8)),
            5);
  for (const auto& of : chances) {
    double sum = 0;
    for (const double chance : of) sum += chance - 0.5;
    EXPECT_LT(std::abs(sum) * std::sqrt(12.0 / static_cast<double>(of.size())), 5);
  }
}

TEST(StochasticRounding, Bf16IsKeptAndTheLargestNeverBecomesInfinite) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bf16 = static_cast<std::uint16_t>(pattern);
    const float value = widen(bf16);
    const std::uint16_t expected = value == value ? bf16 : kBf16NaN;
    for (const std::uint32_t chance : {0u, 0x8000u, 0xFFFFu}) ASSERT_EQ(round_bf16_randomly(value, chance), expected);
  }
  const float largest = std::bit_cast<float>(0x7F7FFFFFu);
  EXPECT_EQ(round_bf16_randomly(largest, 0xFFFF), 0x7F7F);
  EXPECT_EQ(round_bf16_randomly(-largest, 0xFFFF), 0xFF7F);
}

// Over all chances the mean is the value itself.
TEST(StochasticRounding, Bf16IsUnbiased) {
  for (const std::uint32_t bits : {0x3F801234u, 0xBDCCFEDCu, 0x00012345u, 0x42FFFFFFu}) {
    double sum = 0;
    for (std::uint32_t chance = 0; chance < 65536; ++chance) {
      sum += widen(round_bf16_randomly(std::bit_cast<float>(bits), chance));
    }
    EXPECT_EQ(sum / 65536, static_cast<double>(std::bit_cast<float>(bits)));
  }
}

/// The moments of `n` equal elements after one update from `start` with `grad`, as fp32.
std::vector<float> moments_after(Moments moments, std::size_t k, float start, float grad, std::size_t n) {
  std::vector<float> weight(n), grads(n, grad), scales[2], out(n);
  std::vector<std::uint16_t> m[2] = {std::vector<std::uint16_t>(n), std::vector<std::uint16_t>(n)};
  for (auto& each : m) {
    for (auto& pattern : each) pattern = round_bf16(start);
  }
  const auto bytes = [](auto& of) { return reinterpret_cast<std::byte*>(of.data()); };
  update({Weights::fp32, moments},
         {.weight = bytes(weight), .moments = {bytes(m[0]), bytes(m[1])}, .grad = bytes(grads), .n = n, .index = 12345},
         {.learning_rate = 1e-3, .step = 4, .seed = 99});
  for (std::size_t i = 0; i < n; ++i) out[i] = widen(m[k][i]);
  return out;
}

// A second moment of 1 and a gradient of 2: the step of 0.003 is less than half of what separates two bf16 at 1, and
// rounding to nearest would never move.
TEST(StochasticRounding, SmallStepsOfBf16MomentsAddUpOnAverage) {
  testing::on_every_target([] {
    for (const std::size_t k : {0, 1}) {
      const auto all = moments_after(Moments::bf16, k, 1.0f, 2.0f, kCount / 4);
      double sum = 0;
      for (const float value : all) sum += value;
      const double expected = k == 0 ? 1.1 : 1.003, gap = 1.0 / 128;
      EXPECT_NEAR(sum / static_cast<double>(all.size()), expected, 5 * gap / 2 / std::sqrt(kCount / 4)) << k;
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
