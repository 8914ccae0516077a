#include "spillway/subspace/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "spillway/base/error.h"
#include "spillway/kernels/split.h"
#include "tests/subspace/dense.h"

namespace spillway::subspace {
namespace {

using testing::Dense;
using testing::Weight;

constexpr std::size_t kRows = 24, kColumns = 40;

TEST(Matrix, RankIsHalfOfTheSmallerSideUnlessTold) {
  EXPECT_EQ(12U, rank_of({.rows = 24, .columns = 40}));
  EXPECT_EQ(8U, rank_of({.rows = 19, .columns = 40}));
  EXPECT_EQ(24U, rank_of({.rows = 24, .columns = 40, .rank = 24}));
  EXPECT_THROW((void)rank_of({.rows = 24, .columns = 40, .rank = 28}), Error);
  EXPECT_THROW((void)rank_of({.rows = 6, .columns = 40}), Error);
  EXPECT_THROW(Matrix({.rows = 24, .columns = 40, .rank = 10}), Error);
}

TEST(Matrix, AStepIsAdamWInTheSubspaceInDouble) {
  constexpr double kRate = 1e-2, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-8;
  Matrix matrix({.rows = kRows, .columns = kColumns});
  Weight weight(testing::white(kRows * kColumns, 1));
  Dense expected(kRows, kColumns, weight.master());
  const auto d = matrix.rank();
  matrix.refit(testing::gradient_like(kRows, kColumns, 4, 2), false);
  const Dense p(matrix.projectors().p), q(matrix.projectors().q);
  Dense m(d, d), v(d, d);
  for (int step = 1; step <= 5; ++step) {
    const auto gradient = testing::gradient_like(kRows, kColumns, 4, 10 + static_cast<std::uint64_t>(step));
    const auto s = project(matrix.projectors(), gradient);
    matrix.step(kernels::Weights::bf16, s,
                {.learning_rate = kRate,
                 .beta1 = kBeta1,
                 .beta2 = kBeta2,
                 .epsilon = kEpsilon,
                 .weight_decay = kDecay,
                 .gradient_scale = 0.5F,
                 .step = step},
                weight.span());
    Dense delta(d, d);
    for (std::size_t i = 0; i < d * d; ++i) {
      const double g = 0.5 * s[i];
      m.values[i] = kBeta1 * m.values[i] + (1 - kBeta1) * g;
      v.values[i] = kBeta2 * v.values[i] + (1 - kBeta2) * g * g;
      const double root = std::sqrt(v.values[i] / (1 - std::pow(kBeta2, step)));
      delta.values[i] = -kRate * m.values[i] / (1 - std::pow(kBeta1, step)) / (root + kEpsilon);
      delta.values[i] *= std::sqrt(static_cast<double>(kRows * kColumns)) / static_cast<double>(d);
    }
    const auto change = p * delta * q.turned();
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      expected.values[i] = (1 - kRate * kDecay) * expected.values[i] + change.values[i];
    }
  }
  const auto found = weight.master();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(expected.values[i], found[i], 2e-5);
}

TEST(Matrix, SolvesLeastSquares) {
  // min |W - T|^2: the gradient is W - T. A fixed subspace can only reach its part of it; new fits go on.
  const auto target = testing::white(kRows * kColumns, 7);
  const auto distance_after = [&](bool refits) {
    Matrix matrix({.rows = kRows, .columns = kColumns});
    Weight weight(std::vector<float>(kRows * kColumns));
    std::vector<float> gradient(target.size());
    for (int step = 1; step <= 120; ++step) {
      const auto now = weight.master();
      for (std::size_t i = 0; i < now.size(); ++i) gradient[i] = now[i] - target[i];
      if (step == 1 || (refits && step % 20 == 0)) matrix.refit(gradient, false);
      const auto s = project(matrix.projectors(), gradient);
      matrix.step(kernels::Weights::bf16, s, {.learning_rate = 0.03, .step = step}, weight.span());
    }
    double sum = 0;
    const auto now = weight.master();
    for (std::size_t i = 0; i < now.size(); ++i) sum += (now[i] - target[i]) * (now[i] - target[i]);
    return std::sqrt(sum / static_cast<double>(now.size()));
  };
  const double fixed = distance_after(false), refitted = distance_after(true);
  EXPECT_LT(fixed, 0.97);
  EXPECT_LT(refitted, 0.6 * fixed);
}

TEST(Matrix, EveryOptimizerStepsAndOnlyDecoupledDecayIsTaken) {
  for (const auto optimizer :
       {kernels::Optimizer::adamw, kernels::Optimizer::adam, kernels::Optimizer::lion, kernels::Optimizer::sgd}) {
    Matrix matrix({.rows = kRows, .columns = kColumns});
    Weight weight(testing::white(kRows * kColumns, 1));
    const auto before = weight.master();
    const auto gradient = testing::gradient_like(kRows, kColumns, 4, 2);
    matrix.refit(gradient, false);
    const auto s = project(matrix.projectors(), gradient);
    kernels::UpdateStep step{.optimizer = optimizer, .learning_rate = 1e-3};
    matrix.step(kernels::Weights::bf16, s, step, weight.span());
    EXPECT_NE(before, weight.master());
    step.weight_decay = 0.1;
    const bool decoupled = optimizer == kernels::Optimizer::adamw || optimizer == kernels::Optimizer::lion;
    if (decoupled) {
      EXPECT_NO_THROW(matrix.step(kernels::Weights::bf16, s, step, weight.span()));
    } else {
      EXPECT_THROW(matrix.step(kernels::Weights::bf16, s, step, weight.span()), Error);
    }
  }
}

TEST(Matrix, GoesOnFromWhatWasSavedBitByBit) {
  const auto run = [](bool interrupted) {
    auto matrix = std::make_unique<Matrix>(MatrixOptions{.rows = kRows, .columns = kColumns});
    Weight weight(testing::white(kRows * kColumns, 1));
    for (int step = 1; step <= 6; ++step) {
      const auto gradient = testing::gradient_like(kRows, kColumns, 4, static_cast<std::uint64_t>(step));
      if (step == 1 || step == 5) matrix->refit(gradient, false);
      if (interrupted && step == 4) {
        auto other = std::make_unique<Matrix>(MatrixOptions{.rows = kRows, .columns = kColumns});
        other->set_projectors(matrix->projectors(), matrix->refits());
        for (const std::size_t k : {0, 1}) other->moment(k) = matrix->moment(k);
        matrix = std::move(other);
      }
      matrix->step(kernels::Weights::bf16, project(matrix->projectors(), gradient),
                   {.learning_rate = 1e-2, .step = step}, weight.span());
    }
    return weight.high;
  };
  EXPECT_EQ(run(false), run(true));
}

TEST(Matrix, RefusesOtherShapesAndAStepBeforeAFit) {
  Matrix matrix({.rows = kRows, .columns = kColumns});
  Weight weight(testing::white(kRows * kColumns, 1));
  const std::vector<float> s(matrix.rank() * matrix.rank());
  EXPECT_THROW(matrix.step(kernels::Weights::bf16, s, {}, weight.span()), Error);
  EXPECT_THROW(matrix.set_projectors({Projector(24, 8, 4), Projector(40, 8, 4)}, 1), Error);
}

TEST(Bias, FollowsTheErrorWithoutFormingTheGradient) {
  Matrix matrix({.rows = kRows, .columns = kColumns});
  matrix.refit(testing::gradient_like(kRows, kColumns, 4, 2), false);
  double squares = 0;
  constexpr int kSteps = 200;
  std::vector<float> z(kColumns);
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = testing::gradient_like(kRows, kColumns, 4, static_cast<std::uint64_t>(step) + 50);
    const auto s = project(matrix.projectors(), gradient);
    draw_signs(1, 2, step, z);
    double inside = 0, probe = 0;
    for (const float value : s) inside += static_cast<double>(value) * value;
    for (std::size_t i = 0; i < kRows; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < kColumns; ++k) sum += static_cast<double>(gradient[i * kColumns + k]) * z[k];
      probe += sum * sum;
    }
    matrix.bias().add(inside, probe);
    const double error = testing::error_of(matrix.projectors(), Dense(kRows, kColumns, gradient));
    squares += error * error / kSteps;
  }
  EXPECT_EQ(200U, matrix.bias().samples);
  EXPECT_NEAR(std::sqrt(squares), matrix.bias().error(), 0.15);
  matrix.bias().add(std::numeric_limits<double>::infinity(), 1);
  EXPECT_EQ(200U, matrix.bias().samples);
}

TEST(Rotation, MomentsBeginAnewWithTheirOwnCountOfSteps) {
  constexpr std::size_t m = 24, n = 20, d = 8;
  const auto before = testing::gradient_like(m, n, 4, 1), after = testing::gradient_like(m, n, 4, 2);
  std::vector<float> weight(m * n, 0.0F), fresh = weight;
  const auto span = [](std::vector<float>& values) {
    return kernels::UpdateSpan{.weight = reinterpret_cast<std::byte*>(values.data()), .n = values.size()};
  };
  Matrix matrix({.rows = m, .columns = n, .rank = d, .nonzeros = 2}),
      other({.rows = m, .columns = n, .rank = d, .nonzeros = 2});
  matrix.refit(before, true);
  for (std::int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(matrix.begun(), 0);
    if (step == 5) matrix.refit(after, true);  // for step 6
    matrix.step(kernels::Weights::fp32, project(matrix.projectors(), before), {.learning_rate = 1e-2, .step = step},
                span(weight));
  }
  EXPECT_EQ(matrix.begun(), 5);
  other.refit(after, true);
  const auto held = weight;
  for (std::int64_t step = 1; step <= 3; ++step) {
    const auto s = project(matrix.projectors(), after);
    matrix.step(kernels::Weights::fp32, s, {.learning_rate = 1e-2, .step = 5 + step}, span(weight));
    other.step(kernels::Weights::fp32, s, {.learning_rate = 1e-2, .step = step}, span(fresh));
  }
  for (std::size_t i = 0; i < weight.size(); ++i) EXPECT_NEAR(weight[i] - held[i], fresh[i], 1e-6);
  EXPECT_EQ(matrix.moment(0), other.moment(0));
}

TEST(Rotation, EachMatrixIsRefittedOnceInEveryPeriodAndNotAllAtOnce) {
  for (const std::uint64_t every : {1, 3, 20}) {
    for (std::uint64_t tensor = 0; tensor < 50; ++tensor) {
      std::uint64_t times = 0;
      for (std::uint64_t updates = 0; updates <= 5 * every; ++updates) times += rotates(every, updates, tensor) ? 1 : 0;
      EXPECT_EQ(times, 5U) << every << ' ' << tensor;
    }
    std::uint64_t at_once = 0;
    for (std::uint64_t tensor = 0; tensor < 40; ++tensor) at_once += rotates(every, 7, tensor) ? 1 : 0;
    EXPECT_LE(at_once, (40 + every - 1) / every);
  }
  EXPECT_FALSE(rotates(0, 20, 0));
  EXPECT_FALSE(rotates(20, 0, 0));  // before the first update all learn anyway
}

}  // namespace
}  // namespace spillway::subspace
