// The softmax kernels against their scalar references, on every instruction set, and against double.
#include "spillway/kernels/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/softmax_exp.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::bits_of;
using testing::expect_same;
using testing::mix;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Bf16 = std::uint16_t;

/// n logits in [-20, 20), or special patterns now and then.
template <class T>
std::vector<T> logits_of(std::size_t n, std::uint32_t seed, std::uint32_t rarity) {
  auto all = testing::numbers<T>(n, 0, seed, rarity);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t h = mix(static_cast<std::uint32_t>(i) + 77 * seed);
    if (rarity != 0 && h % rarity == 0) continue;
    const float logit = static_cast<float>(h % 400001) * 1e-4f - 20;
    if constexpr (std::is_same_v<T, float>) {
      all[i] = logit;
    } else {
      all[i] = round_bf16(logit);
    }
  }
  return all;
}

float value(Bf16 logit) {
  return widen(logit);
}
float value(float logit) {
  return logit;
}

/// (maximum, sum), folded slice by slice.
struct Stats {
  float maximum = -kInfinity, sum = 0;
};

template <class T>
void expect_stats_like_scalar(const std::vector<T>& logits, std::size_t offset, Stats before) {
  Stats expected = before, actual = before;
  scalar::softmax_stats(logits.data() + offset, logits.size() - offset, &expected.maximum, &expected.sum);
  softmax_stats(logits.data() + offset, logits.size() - offset, &actual.maximum, &actual.sum);
  ASSERT_EQ(bits_of(expected.maximum), bits_of(actual.maximum));
  ASSERT_EQ(bits_of(expected.sum), bits_of(actual.sum));
}

template <class T>
void expect_gradient_like_scalar(const std::vector<T>& logits, std::size_t offset, LogSumExp norm) {
  const std::size_t n = logits.size() - offset;
  for (std::size_t label : {std::size_t{0}, n / 2, n - 1, n, std::numeric_limits<std::size_t>::max()}) {
    auto expected = logits, actual = logits;
    scalar::softmax_gradient(expected.data() + offset, n, norm, 0.125f, label);
    softmax_gradient(actual.data() + offset, n, norm, 0.125f, label);
    expect_same(expected, actual);
  }
}

template <class T>
void expect_like_scalar() {
  testing::on_every_target([] {
    auto lengths = testing::lengths();
    lengths.insert(lengths.end(), {63, 255, 256, 257, 4096, 8195});
    for (std::size_t n : lengths) {
      for (std::size_t offset : {0, 1, 3}) {
        for (std::uint32_t rarity : {0, 5, 4000}) {
          SCOPED_TRACE(::testing::Message() << n << " logits behind " << offset << ", rarity " << rarity);
          const auto logits = logits_of<T>(n + offset, static_cast<std::uint32_t>(n), rarity);
          for (Stats before : {Stats{}, Stats{3, 2.5f}, Stats{50, 4}}) expect_stats_like_scalar(logits, offset, before);
          for (float lse : {0.0f, 19.7f, -80.0f}) expect_gradient_like_scalar(logits, offset, {lse, 0.5f});
        }
      }
    }
  });
}

TEST(Softmax, Bf16AsScalar) {
  expect_like_scalar<Bf16>();
}
TEST(Softmax, Fp32AsScalar) {
  expect_like_scalar<float>();
}

// Through the gradient with log-sum-exp 0 and scale 1: exp itself, over its whole range and a little beyond.
TEST(Softmax, ExpWithinItsErrorAndAsScalar) {
  std::vector<float> in;
  for (std::uint32_t i = 0; i < 1'000'000; ++i)
    in.push_back(-110.0f + static_cast<float>(mix(i) >> 8) * 0x1p-24f * 200);
  for (std::uint32_t bits = 0; bits < 0x43000000; bits += 4099) in.push_back(-std::bit_cast<float>(bits));
  for (float x : {kExpLowest, std::nextafter(kExpLowest, -100.0f), kExpHighest, std::nextafter(kExpHighest, 100.0f)}) {
    in.push_back(x);
  }
  std::vector<float> expected = in;
  scalar::softmax_gradient(expected.data(), expected.size(), {}, 1, in.size());
  double worst = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] < kExpLowest) {
      ASSERT_EQ(expected[i], 0) << in[i];
    } else if (in[i] > kExpHighest) {
      ASSERT_EQ(expected[i], kInfinity) << in[i];
    } else {
      worst = std::max(worst, std::abs(expected[i] / std::exp(double{in[i]}) - 1));
    }
  }
  EXPECT_LT(worst, 2e-7);
  RecordProperty("worst_relative_error", std::to_string(worst * 1e9) + "e-9");
  EXPECT_EQ(scalar::exp(0.0f), 1.0f);
  testing::on_every_target([&] {
    auto actual = in;
    softmax_gradient(actual.data(), actual.size(), {0, 0}, 1, in.size());
    expect_same(expected, actual);
  });
}

template <class T>
double log_sum_exp_in_double(const std::vector<T>& logits) {
  double sum = 0;
  for (T logit : logits) sum += std::exp(double{value(logit)});
  return std::log(sum);
}

/// Log-sum-exp of the whole, folded in slices of `slice`.
template <class T>
float log_sum_exp_in_slices(const std::vector<T>& logits, std::size_t slice) {
  Stats stats;
  for (std::size_t begin = 0; begin < logits.size(); begin += slice) {
    softmax_stats(logits.data() + begin, std::min(slice, logits.size() - begin), &stats.maximum, &stats.sum);
  }
  return stats.maximum + std::log(stats.sum);
}

TEST(Softmax, SlicesFoldToTheLogSumExpOfTheWhole) {
  const auto logits = logits_of<float>(151936, 1, 0);
  const double expected = log_sum_exp_in_double(logits);
  for (std::size_t slice : {1000, 4096, 8192, 151936}) {
    EXPECT_NEAR(log_sum_exp_in_slices(logits, slice), expected, 3e-6) << slice;
  }
}

TEST(Softmax, GradientIsProbabilityLessOneAtTheLabel) {
  const auto logits = logits_of<Bf16>(5000, 2, 0);
  const double lse = log_sum_exp_in_double(logits);
  auto gradient = logits;
  const std::size_t label = 1234;
  softmax_gradient(gradient.data(), gradient.size(), {2, static_cast<float>(lse - 2)}, 0.5f, label);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double expected = 0.5 * (std::exp(value(logits[i]) - lse) - (i == label));
    ASSERT_NEAR(value(gradient[i]), expected, std::abs(expected) * 0x1.01p-8 + 1e-30) << i;
  }
}

TEST(Softmax, AProbabilityIsExactFarFromZero) {
  // Around 1000 a log-sum-exp in one float is off by 3e-5; its two parts are not.
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 1000 + static_cast<float>(i % 7) / 8;
  Stats stats;
  softmax_stats(logits.data(), logits.size(), &stats.maximum, &stats.sum);
  auto gradient = logits;
  softmax_gradient(gradient.data(), gradient.size(), {stats.maximum, std::log(stats.sum)}, 1, gradient.size());
  double sum = 0;
  for (float probability : gradient) sum += double{probability};
  EXPECT_NEAR(sum, 1, 5e-7);
}

TEST(Softmax, NothingChangesNothing) {
  testing::on_every_target([] {
    Stats stats{2.5f, 7.25f}, fresh;
    softmax_stats(static_cast<const Bf16*>(nullptr), 0, &stats.maximum, &stats.sum);
    softmax_stats(static_cast<const Bf16*>(nullptr), 0, &fresh.maximum, &fresh.sum);
    softmax_gradient(static_cast<float*>(nullptr), 0, {}, 1, 0);
    EXPECT_EQ(stats.maximum, 2.5f);
    EXPECT_EQ(stats.sum, 7.25f);
    EXPECT_EQ(fresh.maximum, -kInfinity);
    EXPECT_EQ(fresh.sum, 0);
  });
}

TEST(Softmax, MaskedLogitsCountForNothing) {
  testing::on_every_target([] {
    std::vector<float> masked(100, -kInfinity);
    Stats stats;
    softmax_stats(masked.data(), masked.size(), &stats.maximum, &stats.sum);
    EXPECT_EQ(stats.maximum, -kInfinity);
    EXPECT_EQ(stats.sum, 0);
    masked[41] = 3;
    softmax_stats(masked.data(), masked.size(), &stats.maximum, &stats.sum);
    EXPECT_EQ(stats.maximum, 3);
    EXPECT_EQ(stats.sum, 1);
    softmax_gradient(masked.data(), masked.size(), {3, 0}, 1, masked.size());
    for (std::size_t i = 0; i < masked.size(); ++i) ASSERT_EQ(masked[i], i == 41 ? 1.0f : 0.0f);
  });
}

TEST(Softmax, NaNAndInfinityReachTheSum) {
  testing::on_every_target([] {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
      for (std::size_t i = 0; i < 70; ++i) {
        std::vector<float> logits(70, 1.0f);
        logits[i] = bad;
        Stats stats;
        softmax_stats(logits.data(), logits.size(), &stats.maximum, &stats.sum);
        ASSERT_TRUE(std::isnan(stats.sum)) << bad << " at " << i;
        logits[i] = 1;
        softmax_stats(logits.data(), logits.size(), &stats.maximum, &stats.sum);
        ASSERT_TRUE(std::isnan(stats.sum)) << "forgotten by a later slice: " << bad << " at " << i;
      }
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
