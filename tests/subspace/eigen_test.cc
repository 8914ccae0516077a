#include "spillway/subspace/eigen.h"

#include <gtest/gtest.h>

#include "tests/subspace/dense.h"
#include "tests/subspace/jacobi.h"

namespace spillway::subspace {
namespace {

using testing::Dense;

/// Of `lines` random lines: of that rank at most.
Dense gram(std::size_t n, std::size_t lines, std::uint64_t seed) {
  const Dense a(n, lines, testing::white(n * lines, seed));
  return a * a.turned();
}

Dense scaled(Dense a, double factor) {
  for (double& value : a.values) value *= factor;
  return a;
}

Dense diagonal(const std::vector<double>& values) {
  Dense out(values.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out.at(i, i) = values[i];
  return out;
}

/// Neighbours all alike, and a diagonal: for |i - middle| the largest eigenvalues come in pairs that differ by less
/// than rounding (Wilkinson, The Algebraic Eigenvalue Problem, 5.45).
Dense wilkinson(std::size_t n) {
  Dense out(n, n);
  for (std::size_t i = 0; i < n; ++i) {
    out.at(i, i) = std::abs(static_cast<double>(i) - static_cast<double>(n / 2));
    if (i > 0) out.at(i, i - 1) = out.at(i - 1, i) = 1;
  }
  return out;
}

/// Directions each a thousandth of the one before.
Dense graded(std::size_t n) {
  const Dense turn(n, n, testing::white(n * n, 5));
  std::vector<double> values(n, 1);
  for (std::size_t i = 1; i < n; ++i) values[i] = values[i - 1] * 1e-3;
  return turn * diagonal(values) * turn.turned();
}

/// `times` the same block: every eigenvalue is there as often.
Dense blocks(std::size_t times, std::size_t size) {
  const auto block = gram(size, 2 * size, 8);
  Dense out(times * size, times * size);
  for (std::size_t i = 0; i < out.rows; ++i) {
    for (std::size_t k = 0; k < size; ++k) out.at(i, i / size * size + k) = block.at(i % size, k);
  }
  return out;
}

std::vector<Dense> hard_matrices() {
  std::vector<Dense> out = {scaled(gram(12, 30, 1), 1e-80),
                            scaled(gram(12, 30, 2), 1e70),
                            diagonal({0, 0, 0, 0, 0}),
                            diagonal({1, 1, 1, 1}),
                            diagonal({1, 3, 2, 3, 0}),
                            wilkinson(21),
                            graded(16),
                            graded(40),
                            blocks(4, 5),
                            blocks(8, 11),
                            gram(88, 128, 3),
                            gram(88, 3, 4),
                            gram(32, 1, 5)};
  for (const std::size_t n : {1, 2, 3, 8, 17, 22}) out.push_back(gram(n, n, n));
  return out;
}

/// Whether rows are orthonormal, and the matrix multiplies each by its eigenvalue, to rounding of the largest.
void expect_eigenvectors(const Dense& matrix, const Dense& vectors, const std::vector<double>& values) {
  const auto n = matrix.rows;
  const double close = 1e-14 * static_cast<double>(n) * std::max(values[0], std::abs(values.back()));
  const auto images = vectors * matrix, products = vectors * vectors.turned();
  for (std::size_t i = 0; i < vectors.rows; ++i) {
    for (std::size_t k = 0; k < n; ++k) ASSERT_NEAR(images.at(i, k), values[i] * vectors.at(i, k), close) << i;
    for (std::size_t k = 0; k < vectors.rows; ++k) ASSERT_NEAR(i == k ? 1 : 0, products.at(i, k), 1e-13);
  }
}

TEST(Eigen, FindsTheLeadingVectors) {
  Eigenvectors work;  // of one size after another
  for (const auto& matrix : hard_matrices()) {
    const auto n = matrix.rows;
    const auto all = testing::jacobi(matrix.values, n).values;
    for (const auto count : {n, (n + 1) / 2, std::size_t{1}}) {
      SCOPED_TRACE(::testing::Message() << count << " of " << n);
      auto values = matrix.values;
      const auto found = work.leading(values, n, count);
      ASSERT_EQ(count * n, found.size());
      Dense vectors(count, n);
      vectors.values.assign(found.begin(), found.end());
      expect_eigenvectors(matrix, vectors, all);
    }
  }
}

TEST(Eigen, AreJacobisWhereTheyAreOneByOne) {
  for (const std::size_t n : {2, 8, 22}) {
    const auto matrix = gram(n, 3 * n, n + 1);
    const auto expected = testing::jacobi(matrix.values, n);
    auto values = matrix.values;
    Eigenvectors work;
    const auto found = work.leading(values, n, n);
    for (std::size_t i = 0; i < n; ++i) {
      double product = 0;
      for (std::size_t k = 0; k < n; ++k) product += found[i * n + k] * expected.vectors[i * n + k];
      EXPECT_NEAR(1, std::abs(product), 1e-12) << i << " of " << n;
    }
  }
}

TEST(Eigen, OfADiagonalMatrixAreCoordinates) {
  Eigenvectors work;
  std::vector<double> matrix = diagonal({1, 3, 2, 3}).values;
  const auto found = work.leading(matrix, 4, 3);
  EXPECT_EQ((std::vector<double>{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0}), std::vector<double>(found.begin(), found.end()));
}

TEST(Eigen, TheLargestElementIsPositive) {
  Eigenvectors work;
  for (std::uint64_t draw = 0; draw < 20; ++draw) {
    auto matrix = gram(9, 20, draw);
    const auto found = work.leading(matrix.values, 9, 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto vector = found.subspan(i * 9, 9);
      EXPECT_GT(*std::ranges::max_element(vector, {}, [](double v) { return std::abs(v); }), 0);
    }
  }
}

}  // namespace
}  // namespace spillway::subspace
