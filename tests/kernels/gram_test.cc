// Gram matrices bit by bit against their scalar reference on every instruction set.
#include "spillway/kernels/gram.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::numbers;

/// Sides around the tile and every vector, counts around the lines that are widened together; lines misaligned.
TEST(Gram, IsAsScalar) {
  testing::on_every_target([] {
    for (const std::size_t n : {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 22, 32, 88}) {
      for (const std::size_t count : {0, 1, 5, 31, 32, 33, 70}) {
        SCOPED_TRACE(::testing::Message() << n << ", " << count << " lines");
        const auto stride = n + 3, side = gram_side(n);
        const auto lines = numbers<float>(count * stride, 1, 5, 0);
        std::vector<double> expected(side * side, 0.25), actual = expected, work(gram_work(n));
        scalar::add_gram(lines.data() + 1, stride, count, n, expected.data());
        add_gram(lines.data() + 1, stride, count, n, actual.data(), work.data());
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t k = 0; k <= i; ++k) ASSERT_EQ(expected[i * side + k], actual[i * side + k]) << i << ' ' << k;
        }
      }
    }
  });
}

TEST(Gram, OfPartsIsThatOfAll) {
  constexpr std::size_t n = 11, count = 100;
  const auto side = gram_side(n);
  const auto lines = numbers<float>(count * n, 0, 9, 0);
  std::vector<double> whole(side * side), parts = whole, work(gram_work(n));
  add_gram(lines.data(), n, count, n, whole.data(), work.data());
  for (std::size_t line = 0; line < count; line += 20) {
    add_gram(lines.data() + line * n, n, 20, n, parts.data(), work.data());
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) EXPECT_EQ(whole[i * side + k], parts[i * side + k]);
  }
}

TEST(Gram, WhatIsNotFiniteStaysInItsRowAndColumn) {
  constexpr std::size_t n = 12;
  const auto side = gram_side(n);
  std::vector<float> lines(40 * n, 0.5F);
  lines[17 * n + 9] = std::numeric_limits<float>::infinity();
  std::vector<double> gram(side * side), work(gram_work(n));
  add_gram(lines.data(), n, 40, n, gram.data(), work.data());
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) EXPECT_EQ(i != 9 && k != 9, gram[i * side + k] == 10) << i << ' ' << k;
  }
}

}  // namespace
}  // namespace spillway::kernels
