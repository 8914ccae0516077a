#include "spillway/subspace/projector.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "tests/subspace/dense.h"

namespace spillway::subspace {
namespace {

using testing::Dense;

TEST(Projector, RefusesWhatIsNone) {
  const auto refused = [](std::size_t rows, std::size_t columns, std::size_t nonzeros) {
    try {
      Projector(rows, columns, nonzeros);
    } catch (const Error& error) {
      return error.code() == ErrorCode::bad_input &&
             std::string(error.what()).find("lsp_nonzeros") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(8, 4, 0));
  EXPECT_TRUE(refused(8, 0, 1));
  EXPECT_TRUE(refused(8, 4, 5));  // r > d
  EXPECT_TRUE(refused(8, 4, 3));  // does not divide
  EXPECT_TRUE(refused(8, 9, 3));  // d > rows
  EXPECT_FALSE(refused(8, 8, 8));
  EXPECT_FALSE(refused(1, 1, 1));
}

TEST(Projector, HasExactlyItsValuesInEveryRow) {
  const auto r = Projector::random(Projector(37, 12, 3), 1, 2, 0, 0);
  const Dense dense(r);
  for (std::size_t i = 0; i < r.rows(); ++i) {
    std::size_t there = 0;
    for (std::size_t k = 0; k < r.columns(); ++k) there += dense.at(i, k) != 0;
    EXPECT_EQ(3U, there);
  }
}

TEST(Projector, RandomValuesBelongToSeedTensorRefitAndSide) {
  const Projector shape(64, 32, 4);
  const auto first = Projector::random(shape, 1, 2, 3, 0).values();
  EXPECT_EQ(first, Projector::random(shape, 1, 2, 3, 0).values());
  EXPECT_NE(first, Projector::random(shape, 2, 2, 3, 0).values());
  EXPECT_NE(first, Projector::random(shape, 1, 3, 3, 0).values());
  EXPECT_NE(first, Projector::random(shape, 1, 2, 4, 0).values());
  EXPECT_NE(first, Projector::random(shape, 1, 2, 3, 1).values());
}

/// E |P P^T G Q Q^T - G|^2 / |G|^2. Values of variance 1 / r make E P P^T = 1 and E |P P^T x|^2 = |x|^2 (1 + 2 / r +
/// (g - 1) / r) with g rows in a group, which is m r / d: so (1 + m / d + 1 / r) (1 + n / d + 1 / r) - 1. The paper's
/// sqrt((1 + m / d) (1 + n / d) - 1) is this for large r.
double expected_error(std::size_t m, std::size_t n, std::size_t d, std::size_t r) {
  const auto side = [&](std::size_t rows) {
    return 1 + static_cast<double>(rows) / static_cast<double>(d) + 1 / static_cast<double>(r);
  };
  return std::sqrt(side(m) * side(n) - 1);
}

TEST(Projector, RandomOnesMissWhatTheorySays) {
  struct Sizes {
    std::size_t m, n, d, r;
  };
  for (const auto& it : {Sizes{64, 64, 32, 4}, {96, 48, 24, 8}, {64, 64, 32, 32}, {80, 64, 16, 1}}) {
    const auto gradient = testing::white(it.m * it.n, 5);
    const Dense dense(it.m, it.n, gradient);
    double squares = 0;
    constexpr std::uint64_t kDraws = 40;
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
      const Projectors projectors{Projector::random(Projector(it.m, it.d, it.r), 7, 0, draw, 0),
                                  Projector::random(Projector(it.n, it.d, it.r), 7, 0, draw, 1)};
      const double error = testing::error_of(projectors, dense);
      squares += error * error / kDraws;
    }
    EXPECT_NEAR(expected_error(it.m, it.n, it.d, it.r), std::sqrt(squares), 0.06 * std::sqrt(squares))
        << it.m << " x " << it.n << ", d " << it.d << ", r " << it.r;
  }
}

TEST(Projector, TheoryIsThePapersForManyValues) {
  EXPECT_NEAR(std::sqrt((1 + 2.0) * (1 + 2.0) - 1), expected_error(64, 64, 32, 1 << 20), 1e-5);
}

}  // namespace
}  // namespace spillway::subspace
