#include "spillway/subspace/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "spillway/base/error.h"
#include "tests/subspace/dense.h"
#include "tests/subspace/jacobi.h"

namespace spillway::subspace {
namespace {

using testing::Dense;
using testing::error_of;

struct Case {
  std::size_t m, n, d, r;
};
const std::vector<Case> kCases = {{32, 32, 16, 4}, {48, 40, 16, 4},  {40, 61, 12, 3}, {33, 17, 11, 1},
                                  {24, 24, 24, 4}, {24, 24, 12, 12}, {1, 1, 1, 1}};

Pair pair_of(const Case& it) {
  return {Projector(it.m, it.d, it.r), Projector(it.n, it.d, it.r)};
}

void expect_orthonormal(const Projector& r) {
  const Dense dense(r);
  const auto gram = dense.turned() * dense;
  for (std::size_t i = 0; i < gram.rows; ++i) {
    for (std::size_t k = 0; k < gram.rows; ++k) EXPECT_NEAR(i == k ? 1 : 0, gram.at(i, k), 1e-6);
  }
}

TEST(Fit, ColumnsAreOrthonormalSoThatTheErrorIsKnownFromTheNorms) {
  for (const auto& it : kCases) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    auto pair = pair_of(it);
    fit(pair, gradient);
    expect_orthonormal(pair.p);
    expect_orthonormal(pair.q);
    const Dense dense(it.m, it.n, gradient), s(it.d, it.d, project(pair, gradient));
    const double whole = dense.norm() * dense.norm(), inside = s.norm() * s.norm();
    EXPECT_NEAR(std::sqrt(std::max(0.0, 1 - inside / whole)), error_of(pair, dense), 1e-3);
  }
}

void run_backwards(Fit& fit) {
  for (unsigned part = 0; part < Fit::kParts; ++part) {
    for (auto tile = fit.tiles(part); tile-- > 0;) fit.run(part, tile);
  }
}

TEST(Fit, TilesInAnyOrderGiveTheSameBits) {
  for (const Case& it : {Case{520, 700, 256, 4}, {700, 520, 96, 16}, {37, 300, 37, 37}}) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    auto whole = pair_of(it), tiled = pair_of(it);
    fit(whole, gradient);
    Fit tiles(it.m * it.d + 5);
    tiles.begin(tiled, gradient);
    EXPECT_GT(tiles.tiles(0) + tiles.tiles(1), it.n > 500 ? 2U : 1U);
    run_backwards(tiles);
    EXPECT_EQ(whole.p.values(), tiled.p.values());
    EXPECT_EQ(whole.q.values(), tiled.q.values());
  }
}

TEST(Fit, RowsOfWhatIsNotFiniteKeepTheirValues) {
  const Case it{48, 40, 16, 4};
  auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
  auto before = pair_of(it);
  fit(before, testing::gradient_like(it.m, it.n, 5, 4));
  gradient[7 * it.n + 11] = std::numeric_limits<float>::infinity();
  auto pair = before;
  Fit tiles(it.m * it.d);
  tiles.begin(pair, gradient);
  run_backwards(tiles);
  expect_orthonormal(pair.p);
  expect_orthonormal(pair.q);
  const auto group = [](const Projector& r, std::size_t row) { return r.view().group_of(row); };
  for (std::size_t row = 0; row < it.n; ++row) {
    const bool same = pair.q.value(row, 0) == before.q.value(row, 0);
    EXPECT_EQ(same, group(pair.q, row) == group(pair.q, 11)) << row;
  }
  for (std::size_t row = 0; row < it.m; ++row) {
    const bool same = pair.p.value(row, 0) == before.p.value(row, 0);
    EXPECT_EQ(same, group(pair.p, row) == group(pair.p, 7)) << row;
  }
}

TEST(Fit, IsTheBestThatItsBlocksAllow) {
  // Against random orthonormal blocks, and against each side alone: no other P does better with this Q.
  const Case it{48, 40, 16, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
  const Dense dense(it.m, it.n, gradient);
  auto pair = pair_of(it);
  fit(pair, gradient);
  const double best = error_of(pair, dense);
  for (std::uint64_t draw = 0; draw < 20; ++draw) {
    auto other = pair;
    auto start = pair_of(it);
    fit(start, testing::white(it.m * it.n, 100 + draw));
    other.p = start.p;
    EXPECT_LT(best, error_of(other, dense));
  }
}

/// P from G Q as the slow way has it: all eigenvectors of a group's Gram matrix, in double.
Projector best_left(const Pair& pair, const Dense& gradient) {
  auto out = pair.p;
  const auto half = gradient * Dense(pair.q);
  const auto gram = half * half.turned();
  for (std::size_t g = 0; g < out.view().groups(); ++g) {
    const auto first = out.view().first(g), n = out.view().first(g + 1) - first;
    std::vector<double> block;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k) block.push_back(gram.at(first + i, first + k));
    }
    const auto all = testing::jacobi(block, n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t s = 0; s < out.nonzeros(); ++s) {
        out.set(first + i, s, static_cast<float>(all.vectors[s * n + i]));
      }
    }
  }
  return out;
}

TEST(Fit, MissesNoMoreThanBySlowEigenvectors) {
  for (const auto& it : {Case{64, 48, 16, 4}, {96, 64, 32, 16}, {48, 40, 16, 4}, {24, 24, 12, 12}}) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    const Dense dense(it.m, it.n, gradient);
    auto pair = pair_of(it);
    fit(pair, gradient);
    auto slow = pair;
    slow.p = best_left(pair, dense);
    EXPECT_NEAR(error_of(slow, dense), error_of(pair, dense), 1e-6);
  }
}

TEST(Fit, TurnsLowerTheError) {
  const Case it{64, 48, 16, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 12, 8);
  double before = 1;
  for (const int turns : {1, 2, 3, 5}) {
    auto pair = pair_of(it);
    fit(pair, gradient, turns);
    const double error = error_of(pair, Dense(it.m, it.n, gradient));
    EXPECT_LE(error, before + 1e-6);
    before = error;
  }
}

TEST(Fit, BeatsWhatThePaperLearns) {
  // A low-rank gradient: random projectors are useless, learned ones catch most of it.
  const Case it{64, 64, 32, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 3, 4);
  auto pair = pair_of(it);
  fit(pair, gradient);
  EXPECT_LT(error_of(pair, Dense(it.m, it.n, gradient)), 0.6);
  const Pair random{Projector::random(pair.p, 1, 0, 0, 0), Projector::random(pair.q, 1, 0, 0, 1)};
  EXPECT_GT(error_of(random, Dense(it.m, it.n, gradient)), 1.5);
}

TEST(Fit, AWholeSideMissesNothing) {
  const Case it{24, 24, 24, 4};
  const auto gradient = testing::white(it.m * it.n, 2);
  auto pair = pair_of(it);
  fit(pair, gradient);
  EXPECT_LT(error_of(pair, Dense(it.m, it.n, gradient)), 1e-5);
}

TEST(Fit, TakesAGradientOfZeros) {
  auto pair = pair_of(kCases[0]);
  fit(pair, std::vector<float>(32 * 32));
  expect_orthonormal(pair.p);
  expect_orthonormal(pair.q);
}

TEST(Fit, RefusesWhatIsNotFiniteAndChangesNothing) {
  auto pair = pair_of(kCases[0]);
  auto gradient = testing::white(32 * 32, 1);
  gradient[77] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(fit(pair, gradient), Error);
  EXPECT_THROW(fit(pair, std::vector<float>(31)), Error);
  for (const float value : pair.p.values()) EXPECT_EQ(0, value);
}

TEST(Fit, ProjectsAsDenseMatrices) {
  for (const auto& it : kCases) {
    const Pair pair{Projector::random(Projector(it.m, it.d, it.r), 3, 0, 0, 0),
                    Projector::random(Projector(it.n, it.d, it.r), 3, 0, 0, 1)};
    const auto gradient = testing::white(it.m * it.n, 6);
    const auto s = project(pair, gradient);
    const auto expected = Dense(pair.p).turned() * Dense(it.m, it.n, gradient) * Dense(pair.q);
    for (std::size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(expected.values[i], s[i], 1e-4);
  }
}

}  // namespace
}  // namespace spillway::subspace
