// split and join against their scalar references, on every instruction set and every pattern.
#include "spillway/kernels/split.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/kernels/bits.h"
#include "tests/nightly.h"

namespace spillway::kernels {
namespace {

using testing::expect_same;
using testing::numbers;

TEST(SplitJoin, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([] {
    for (std::size_t n : testing::lengths()) {
      for (std::size_t offset : {0, 1, 3}) {
        const auto master = numbers<float>(n, offset, 9, 3);
        std::vector<std::uint16_t> weight(n + offset), remainder(n + offset);
        auto expected_weight = weight, expected_remainder = remainder;
        split(master.data() + offset, weight.data() + offset, remainder.data() + offset, n);
        scalar::split(master.data() + offset, expected_weight.data() + offset, expected_remainder.data() + offset, n);
        expect_same(expected_weight, weight);
        expect_same(expected_remainder, remainder);
        std::vector<float> joined(n + offset), expected_joined = joined;
        join(weight.data() + offset, remainder.data() + offset, joined.data() + offset, n);
        scalar::join(weight.data() + offset, remainder.data() + offset, expected_joined.data() + offset, n);
        expect_same(expected_joined, joined);
      }
    }
  });
}

TEST(SplitJoin, RoundsHalfAwayFromZero) {
  const float master[] = {1.0f, 1.00390625f, -1.00390625f, 1.01171875f, 0.0f};  // 1 + 2^-8 and 1 + 3 * 2^-8 are ties
  std::uint16_t weight[5], remainder[5];
  split(master, weight, remainder, 5);
  const std::uint16_t expected[] = {0x3F80, 0x3F81, 0xBF81, 0x3F82, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(expected[i], weight[i]) << master[i];
}

/// At night all of them, which takes some seconds.
TEST(SplitJoin, EveryPatternOfAFloatSurvives) {
  const auto stride = spillway::testing::few_or<std::uint64_t>(1021, 1);  // prime: every half still occurs
  constexpr std::size_t n = 4096;
  std::vector<std::uint32_t> patterns(n);
  std::vector<float> master(n), joined(n);
  std::vector<std::uint16_t> weight(n), remainder(n);
  std::uint64_t wrong = 0;
  for (std::uint64_t first = 0; first < 1ULL << 32; first += n * stride) {
    for (std::size_t i = 0; i < n; ++i) patterns[i] = static_cast<std::uint32_t>(first + i * stride);
    std::memcpy(master.data(), patterns.data(), n * sizeof(float));
    split(master.data(), weight.data(), remainder.data(), n);
    join(weight.data(), remainder.data(), joined.data(), n);
    wrong += std::memcmp(patterns.data(), joined.data(), n * sizeof(float)) != 0;
  }
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace spillway::kernels
