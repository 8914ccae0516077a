#include "spillway/subspace/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/subspace/dense.h"

namespace spillway::subspace {
namespace {

using testing::Dense;

Projectors projectors_of(std::size_t m, std::size_t n, std::size_t d, std::size_t r, std::uint64_t seed) {
  Projectors out{Projector(m, d, r), Projector(n, d, r)};
  refit(out, testing::gradient_like(m, n, 4, seed));
  return out;
}

TEST(Transfer, IsThePapersFormula) {
  for (const std::size_t r : {1, 3, 4, 12}) {
    const auto before = projectors_of(30, 25, 12, r, 1), after = projectors_of(30, 25, 12, r, 2);
    const auto a = Dense(after.p).turned() * Dense(before.p), b = Dense(after.q).turned() * Dense(before.q);
    auto first = testing::white(144, 3), second = testing::white(144, 4);
    for (auto& value : second) value *= value;
    const auto m = a * Dense(12, 12, first) * b.turned();
    const auto v = squared(a) * Dense(12, 12, second) * squared(b).turned();
    carry_first(before, after, first);
    carry_second(before, after, second);
    for (std::size_t i = 0; i < 144; ++i) {
      EXPECT_NEAR(m.values[i], first[i], 1e-5);
      EXPECT_NEAR(v.values[i], second[i], 1e-5);
    }
  }
}

TEST(Transfer, SecondMomentsAreNeverNegativeNorOfNothing) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto before = projectors_of(32, 48, 16, 4, seed), after = projectors_of(32, 48, 16, 4, seed + 100);
    auto second = testing::white(256, seed);
    for (auto& value : second) value = value * value * 1e-12F;
    double mean = 0;
    for (const float value : second) mean += value / 256;
    auto more = second;
    carry_second(before, after, second);
    carry_second(before, after, more, true);
    double filled = 0;
    for (std::size_t i = 0; i < 256; ++i) {
      EXPECT_GE(second[i], 0);
      EXPECT_GE(more[i], second[i]);
      filled += more[i] / 256;
    }
    EXPECT_GT(filled, 0.5 * mean);
  }
}

TEST(Transfer, TheSameProjectorsChangeNothing) {
  const auto projectors = projectors_of(32, 48, 16, 4, 5);
  const auto first = testing::white(256, 1);
  auto second = first;
  for (auto& value : second) value *= value;
  auto moved = first, squares = second;
  carry_first(projectors, projectors, moved);
  carry_second(projectors, projectors, squares);
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_NEAR(first[i], moved[i], 1e-5);
    EXPECT_NEAR(second[i], squares[i], 1e-4);
  }
}

}  // namespace
}  // namespace spillway::subspace
