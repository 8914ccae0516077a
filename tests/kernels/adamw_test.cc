// adamw, split and join against their scalar references, on every instruction set.
#include "spillway/kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::expect_same;
using testing::numbers;

/// Every field of `n` elements behind `offset` elements that an update must not touch.
struct Fields {
  std::size_t n, offset;
  std::vector<float> master, exp_avg, exp_avg_sq, grad32;
  std::vector<std::uint16_t> weight, residual, grad16;

  Fields(std::size_t count, std::size_t front, std::uint32_t rarity)
      : n(count),
        offset(front),
        master(numbers<float>(n, offset, 1, rarity)),
        exp_avg(numbers<float>(n, offset, 2, rarity)),
        exp_avg_sq(numbers<float>(n, offset, 3, rarity)),
        grad32(numbers<float>(n, offset, 4, rarity)),
        weight(numbers<std::uint16_t>(n, offset, 5, rarity)),
        residual(n + offset),
        grad16(numbers<std::uint16_t>(n, offset, 7, rarity)) {
    for (std::size_t i = 0; i < residual.size(); ++i) {
      residual[i] = static_cast<std::uint16_t>(testing::mix(static_cast<std::uint32_t>(i)));
      if (rarity == 0) exp_avg_sq[i] = std::abs(exp_avg_sq[i]);
    }
  }

  template <class Update>
  void exact(const Update& update, const UpdateStep& step) {
    update(weight.data() + offset, residual.data() + offset, exp_avg.data() + offset, exp_avg_sq.data() + offset,
           grad16.data() + offset, n, step);
  }
  template <class Update>
  void fp32(const Update& update, const UpdateStep& step) {
    update(master.data() + offset, exp_avg.data() + offset, exp_avg_sq.data() + offset, grad32.data() + offset, n,
           step);
  }
};

void expect_same_fields(const Fields& expected, const Fields& actual) {
  expect_same(expected.master, actual.master);
  expect_same(expected.weight, actual.weight);
  expect_same(expected.residual, actual.residual);
  expect_same(expected.exp_avg, actual.exp_avg);
  expect_same(expected.exp_avg_sq, actual.exp_avg_sq);
}

void expect_like_scalar(std::size_t n, std::size_t offset, std::uint32_t rarity, const UpdateStep& step) {
  SCOPED_TRACE(::testing::Message() << n << " elements behind " << offset << ", step " << step.step);
  Fields expected(n, offset, rarity), actual = expected;
  expected.exact(scalar::adamw_exact, step);
  actual.exact(adamw_exact, step);
  expect_same_fields(expected, actual);
  expected.fp32(scalar::adamw_fp32, step);
  actual.fp32(adamw_fp32, step);
  expect_same_fields(expected, actual);
}

const UpdateStep kStep{.learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.7f, .step = 3};

TEST(AdamW, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([] {
    for (std::size_t n : testing::lengths()) {
      for (std::size_t offset : {0, 1, 3}) expect_like_scalar(n, offset, 0, kStep);
    }
  });
}

TEST(AdamW, DenormalInfiniteAndNaNAsScalar) {
  testing::on_every_target([] { expect_like_scalar(20011, 1, 3, kStep); });
}

// The settings that bend the constants: bias corrections of 0 and 1, a lerp from the other side, rates of 0.
TEST(AdamW, SettingsAtTheirEdgesAsScalar) {
  std::vector<UpdateStep> steps(7, kStep);
  steps[0].step = 1;
  steps[1].step = 1'000'000'000;
  steps[2].beta1 = 0.0;
  steps[3].beta2 = 0.0;
  steps[4].beta2 = 1.0;  // a division by zero in every element
  steps[5].learning_rate = 0.0;
  steps[6].epsilon = 0.0;
  testing::on_every_target([&] {
    for (const UpdateStep& step : steps) expect_like_scalar(1003, 0, 5, step);
  });
}

// The division by sqrt(1 - beta2^step) is a corrected product on most targets; here it must be exact for divisors of
// all magnitudes, and for the square roots of a whole range of consecutive floats.
TEST(AdamW, CorrectedReciprocalDividesExactly) {
  constexpr std::size_t n = 4096;
  testing::on_every_target([] {
    for (std::uint32_t round = 0; round < 400; ++round) {
      UpdateStep step{.learning_rate = 1, .beta1 = 0, .beta2 = 1 - 1.0 / (2 + testing::mix(round) % 100000), .step = 1};
      step.step = 1 + testing::mix(round + 7) % 2000;
      std::vector<float> weight(n), exp_avg(n), exp_avg_sq(n), grad(n);
      for (std::size_t i = 0; i < n; ++i) {
        grad[i] =
            std::bit_cast<float>(0x3F000000u + testing::mix(round * n + static_cast<std::uint32_t>(i)) % 0x1000000);
      }
      auto expected = weight;
      auto m = exp_avg, v = exp_avg_sq;
      scalar::adamw_fp32(expected.data(), m.data(), v.data(), grad.data(), n, step);
      adamw_fp32(weight.data(), exp_avg.data(), exp_avg_sq.data(), grad.data(), n, step);
      expect_same(expected, weight);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(SplitJoin, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([] {
    for (std::size_t n : testing::lengths()) {
      for (std::size_t offset : {0, 1, 3}) {
        const auto master = numbers<float>(n, offset, 9, 3);
        std::vector<std::uint16_t> weight(n + offset), residual(n + offset);
        auto expected_weight = weight, expected_residual = residual;
        split(master.data() + offset, weight.data() + offset, residual.data() + offset, n);
        scalar::split(master.data() + offset, expected_weight.data() + offset, expected_residual.data() + offset, n);
        expect_same(expected_weight, weight);
        expect_same(expected_residual, residual);
        std::vector<float> joined(n + offset), expected_joined = joined;
        join(weight.data() + offset, residual.data() + offset, joined.data() + offset, n);
        scalar::join(weight.data() + offset, residual.data() + offset, expected_joined.data() + offset, n);
        expect_same(expected_joined, joined);
      }
    }
  });
}

TEST(SplitJoin, RoundsHalfAwayFromZero) {
  const float master[] = {1.0f, 1.00390625f, -1.00390625f, 1.01171875f, 0.0f};  // 1 + 2^-8 and 1 + 3 * 2^-8 are ties
  std::uint16_t weight[5], residual[5];
  split(master, weight, residual, 5);
  const std::uint16_t expected[] = {0x3F80, 0x3F81, 0xBF81, 0x3F82, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(expected[i], weight[i]) << master[i];
}

#ifdef __OPTIMIZE__
constexpr std::uint64_t kStride = 1;  // all of them: some seconds
#else
constexpr std::uint64_t kStride = 1021;  // prime: every low half and every high half still occurs
#endif

TEST(SplitJoin, EveryPatternOfAFloatSurvives) {
  constexpr std::size_t n = 4096;
  std::vector<std::uint32_t> patterns(n);
  std::vector<float> master(n), joined(n);
  std::vector<std::uint16_t> weight(n), residual(n);
  std::uint64_t wrong = 0;
  for (std::uint64_t first = 0; first < 1ULL << 32; first += n * kStride) {
    for (std::size_t i = 0; i < n; ++i) patterns[i] = static_cast<std::uint32_t>(first + i * kStride);
    std::memcpy(master.data(), patterns.data(), n * sizeof(float));
    split(master.data(), weight.data(), residual.data(), n);
    join(weight.data(), residual.data(), joined.data(), n);
    wrong += std::memcmp(patterns.data(), joined.data(), n * sizeof(float)) != 0;
  }
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace spillway::kernels
