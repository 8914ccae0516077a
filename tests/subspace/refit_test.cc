#include "spillway/subspace/refit.h"

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

Projectors projectors_of(const Case& it) {
  return {Projector(it.m, it.d, it.r), Projector(it.n, it.d, it.r)};
}

void expect_orthonormal(const Projector& r) {
  const Dense dense(r);
  const auto gram = dense.turned() * dense;
  for (std::size_t i = 0; i < gram.rows; ++i) {
    for (std::size_t k = 0; k < gram.rows; ++k) EXPECT_NEAR(i == k ? 1 : 0, gram.at(i, k), 1e-6);
  }
}

TEST(Refit, ColumnsAreOrthonormalSoThatTheErrorIsKnownFromTheNorms) {
  for (const auto& it : kCases) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    auto projectors = projectors_of(it);
    refit(projectors, gradient);
    expect_orthonormal(projectors.p);
    expect_orthonormal(projectors.q);
    const Dense dense(it.m, it.n, gradient), s(it.d, it.d, project(projectors, gradient));
    const double whole = dense.norm() * dense.norm(), inside = s.norm() * s.norm();
    EXPECT_NEAR(std::sqrt(std::max(0.0, 1 - inside / whole)), error_of(projectors, dense), 1e-3);
  }
}

void run_backwards(Refit& refit) {
  for (unsigned part = 0; part < Refit::kParts; ++part) {
    for (auto tile = refit.tiles(part); tile-- > 0;) refit.run(part, tile);
  }
}

TEST(Refit, TilesInAnyOrderGiveTheSameBits) {
  for (const Case& it : {Case{520, 700, 256, 4}, {700, 520, 96, 16}, {37, 300, 37, 37}}) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    auto whole = projectors_of(it), tiled = projectors_of(it);
    refit(whole, gradient);
    Refit tiles(it.m * it.d + 5);
    tiles.begin(tiled, gradient);
    EXPECT_GT(tiles.tiles(0) + tiles.tiles(1), it.n > 500 ? 2U : 1U);
    run_backwards(tiles);
    EXPECT_EQ(whole.p.values(), tiled.p.values());
    EXPECT_EQ(whole.q.values(), tiled.q.values());
  }
}

TEST(Refit, RowsOfWhatIsNotFiniteKeepTheirValues) {
  const Case it{48, 40, 16, 4};
  auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
  auto before = projectors_of(it);
  refit(before, testing::gradient_like(it.m, it.n, 5, 4));
  gradient[7 * it.n + 11] = std::numeric_limits<float>::infinity();
  auto projectors = before;
  Refit tiles(it.m * it.d);
  tiles.begin(projectors, gradient);
  run_backwards(tiles);
  expect_orthonormal(projectors.p);
  expect_orthonormal(projectors.q);
  const auto group = [](const Projector& r, std::size_t row) { return r.view().group_of(row); };
  for (std::size_t row = 0; row < it.n; ++row) {
    const bool same = projectors.q.value(row, 0) == before.q.value(row, 0);
    EXPECT_EQ(same, group(projectors.q, row) == group(projectors.q, 11)) << row;
  }
  for (std::size_t row = 0; row < it.m; ++row) {
    const bool same = projectors.p.value(row, 0) == before.p.value(row, 0);
    EXPECT_EQ(same, group(projectors.p, row) == group(projectors.p, 7)) << row;
  }
}

TEST(Refit, IsTheBestThatItsBlocksAllow) {
  // Against random orthonormal blocks, and against each side alone: no other P does better with this Q.
  const Case it{48, 40, 16, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
  const Dense dense(it.m, it.n, gradient);
  auto projectors = projectors_of(it);
  refit(projectors, gradient);
  const double best = error_of(projectors, dense);
  for (std::uint64_t draw = 0; draw < 20; ++draw) {
    auto other = projectors;
    auto start = projectors_of(it);
    refit(start, testing::white(it.m * it.n, 100 + draw));
    other.p = start.p;
    EXPECT_LT(best, error_of(other, dense));
  }
}

/// P from G Q as the slow way has it: all eigenvectors of a group's Gram matrix, in double.
Projector best_left(const Projectors& projectors, const Dense& gradient) {
  auto out = projectors.p;
  const auto half = gradient * Dense(projectors.q);
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

TEST(Refit, MissesNoMoreThanBySlowEigenvectors) {
  for (const auto& it : {Case{64, 48, 16, 4}, {96, 64, 32, 16}, {48, 40, 16, 4}, {24, 24, 12, 12}}) {
    const auto gradient = testing::gradient_like(it.m, it.n, 5, 3);
    const Dense dense(it.m, it.n, gradient);
    auto projectors = projectors_of(it);
    refit(projectors, gradient);
    auto slow = projectors;
    slow.p = best_left(projectors, dense);
    EXPECT_NEAR(error_of(slow, dense), error_of(projectors, dense), 1e-6);
  }
}

TEST(Refit, TurnsLowerTheError) {
  const Case it{64, 48, 16, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 12, 8);
  double before = 1;
  for (const int turns : {1, 2, 3, 5}) {
    auto projectors = projectors_of(it);
    refit(projectors, gradient, turns);
    const double error = error_of(projectors, Dense(it.m, it.n, gradient));
    EXPECT_LE(error, before + 1e-6);
    before = error;
  }
}

TEST(Refit, BeatsThePapersProjectors) {
  // A low-rank gradient: random projectors are useless, learned ones catch most of it.
  const Case it{64, 64, 32, 4};
  const auto gradient = testing::gradient_like(it.m, it.n, 3, 4);
  auto projectors = projectors_of(it);
  refit(projectors, gradient);
  EXPECT_LT(error_of(projectors, Dense(it.m, it.n, gradient)), 0.6);
  const Projectors random{Projector::random(projectors.p, 1, 0, 0, 0), Projector::random(projectors.q, 1, 0, 0, 1)};
  EXPECT_GT(error_of(random, Dense(it.m, it.n, gradient)), 1.5);
}

TEST(Refit, AWholeSideMissesNothing) {
  const Case it{24, 24, 24, 4};
  const auto gradient = testing::white(it.m * it.n, 2);
  auto projectors = projectors_of(it);
  refit(projectors, gradient);
  EXPECT_LT(error_of(projectors, Dense(it.m, it.n, gradient)), 1e-5);
}

TEST(Refit, TakesAGradientOfZeros) {
  auto projectors = projectors_of(kCases[0]);
  refit(projectors, std::vector<float>(32 * 32));
  expect_orthonormal(projectors.p);
  expect_orthonormal(projectors.q);
}

TEST(Refit, RefusesWhatIsNotFiniteAndChangesNothing) {
  auto projectors = projectors_of(kCases[0]);
  auto gradient = testing::white(32 * 32, 1);
  gradient[77] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(refit(projectors, gradient), Error);
  EXPECT_THROW(refit(projectors, std::vector<float>(31)), Error);
  for (const float value : projectors.p.values()) EXPECT_EQ(0, value);
}

TEST(Refit, ProjectsAsDenseMatrices) {
  for (const auto& it : kCases) {
    const Projectors projectors{Projector::random(Projector(it.m, it.d, it.r), 3, 0, 0, 0),
                                Projector::random(Projector(it.n, it.d, it.r), 3, 0, 0, 1)};
    const auto gradient = testing::white(it.m * it.n, 6);
    const auto s = project(projectors, gradient);
    const auto expected = Dense(projectors.p).turned() * Dense(it.m, it.n, gradient) * Dense(projectors.q);
    for (std::size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(expected.values[i], s[i], 1e-4);
  }
}

}  // namespace
}  // namespace spillway::subspace
