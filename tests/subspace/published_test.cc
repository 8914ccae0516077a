#include "spillway/subspace/published.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "spillway/base/error.h"
#include "spillway/kernels/split.h"
#include "spillway/subspace/scattered.h"
#include "spillway/subspace/transfer.h"
#include "tests/subspace/dense.h"

namespace spillway::subspace {
namespace {

using testing::Dense;

constexpr std::size_t kHigh = 30, kWide = 44;

Projector shape(std::size_t rows, std::size_t d, std::size_t r) {
  return {rows, d, r, Places::scattered};
}

Projectors drawn(std::size_t d, std::size_t r, std::uint64_t seed) {
  return {Projector::random(shape(kHigh, d, r), seed, 0, 0, 0), Projector::random(shape(kWide, d, r), seed, 0, 0, 1)};
}

double missed_in_double(const Dense& p, const Dense& q, const Dense& gradient) {
  return (p * (p.turned() * gradient * q) * q.turned() - gradient).norm() / gradient.norm();
}

TEST(Scattered, RowsHaveTheirValuesAtDifferentPlaces) {
  for (const std::size_t r : {1, 3, 12}) {
    const auto it = Projector::random(shape(200, 12, r), 5, 2, 1, 0);
    std::vector<std::size_t> uses(12);
    double squares = 0;
    for (std::size_t i = 0; i < 200; ++i) {
      std::set<std::size_t> places;
      for (std::size_t s = 0; s < r; ++s) {
        const auto place = it.place(i, s);
        ASSERT_LT(place, 12U);
        places.insert(place);
        ++uses[place];
        squares += static_cast<double>(it.value(i, s)) * it.value(i, s);
      }
      EXPECT_EQ(places.size(), r);
    }
    const auto [least, most] = std::ranges::minmax(uses);
    EXPECT_GT(least, 200 * r / 24);
    EXPECT_LT(most, std::max<std::size_t>(200 * r / 6, 201));
    EXPECT_NEAR(squares / 200, 1, 0.25) << "N(0, 1 / r)";
  }
}

TEST(Scattered, IsAFunctionOfSeedTensorRefitAndSide) {
  const auto like = shape(20, 8, 2);
  const auto it = Projector::random(like, 1, 2, 3, 0);
  EXPECT_EQ(pack(it), pack(Projector::random(like, 1, 2, 3, 0)));
  for (const auto& other : {Projector::random(like, 2, 2, 3, 0), Projector::random(like, 1, 3, 3, 0),
                            Projector::random(like, 1, 2, 4, 0), Projector::random(like, 1, 2, 3, 1)}) {
    EXPECT_NE(it.values(), other.values());
    EXPECT_NE(it.places(), other.places());
  }
}

TEST(Scattered, RefusesShapesPacksAndPlacesThatAreNone) {
  EXPECT_THROW(shape(10, 12, 2), Error);
  EXPECT_THROW(shape(20, 12, 0), Error);
  EXPECT_THROW(shape(20, 12, 5), Error);
  const auto it = Projector::random(shape(20, 8, 2), 1, 0, 0, 0);
  auto other = shape(20, 8, 2);
  auto packed = pack(it);
  packed.back() = 8;
  EXPECT_THROW(unpack(packed, other), Error);
  EXPECT_THROW(unpack(std::span(packed).first(40), other), Error);
  unpack(pack(it), other);
  EXPECT_EQ(pack(other), pack(it));
  check_places(other);
  other.places()[3] = 8;
  EXPECT_THROW(check_places(other), Error);
}

TEST(Descent, MeasuresWhatADenseProductDoes) {
  const auto gradient = testing::gradient_like(kHigh, kWide, 4, 1);
  const auto pair = drawn(12, 4, 3);
  const auto expected = missed_in_double(Dense(pair.p), Dense(pair.q), Dense(kHigh, kWide, gradient));
  EXPECT_GT(expected, 1);
  EXPECT_NEAR(missed_share(pair, gradient), expected, 1e-5 * expected);
}

/// The loss of descend() at values of one side that differ in one of them.
double loss_at(Projectors pair, const Dense& gradient, bool of_p, std::size_t value, double change, double penalty) {
  auto p = Dense(pair.p), q = Dense(pair.q);
  const auto& side = of_p ? pair.p : pair.q;
  (of_p ? p : q).at(value % side.view().stride(), side.places()[value]) += change;
  return missed_in_double(p, q, gradient) + penalty * (p.norm() + q.norm());
}

TEST(Descent, ItsFirstStepsGoDownTheLossInDouble) {
  // AdamW in double, with slopes by differences of the loss.
  constexpr int kSteps = 3;
  constexpr double kRate = 0.02, kDecay = 0.01, kPenalty = 0.05, kStep = 1e-6;
  const auto values = testing::gradient_like(kHigh, kWide, 4, 1);
  const Dense gradient(kHigh, kWide, values);
  auto found = drawn(12, 3, 9), expected = found;
  descend(found, values, {.steps = kSteps, .rate = kRate, .decay = kDecay, .penalty = kPenalty});
  std::vector<double> first(2000), second(2000);
  for (int step = 1; step <= kSteps; ++step) {
    auto next = expected;
    std::size_t number = 0;
    for (const bool of_p : {true, false}) {
      auto& side = of_p ? next.p : next.q;
      auto& to = side.values();
      for (std::size_t k = 0; k < to.size(); ++k, ++number) {
        if (k % side.view().stride() >= side.rows()) continue;
        const double slope = (loss_at(expected, gradient, of_p, k, kStep, kPenalty) -
                              loss_at(expected, gradient, of_p, k, -kStep, kPenalty)) /
                             (2 * kStep);
        first[number] = 0.9 * first[number] + 0.1 * slope;
        second[number] = 0.999 * second[number] + 0.001 * slope * slope;
        const double root = std::sqrt(second[number] / (1 - std::pow(0.999, step)));
        to[k] = static_cast<float>(to[k] * (1 - kRate * kDecay) -
                                   kRate * first[number] / (1 - std::pow(0.9, step)) / (root + 1e-8));
      }
    }
    expected = next;
  }
  EXPECT_EQ(found.p.places(), expected.p.places());
  for (std::size_t k = 0; k < found.p.values().size(); ++k) {
    EXPECT_NEAR(expected.p.values()[k], found.p.values()[k], 1e-3 * kRate * kSteps);
  }
  for (std::size_t k = 0; k < found.q.values().size(); ++k) {
    EXPECT_NEAR(expected.q.values()[k], found.q.values()[k], 1e-3 * kRate * kSteps);
  }
}

TEST(Descent, LearnsToMissLessThanChance) {
  const auto gradient = testing::gradient_like(kHigh, kWide, 2, 1);
  auto pair = drawn(12, 4, 3);
  const auto before = missed_share(pair, gradient);
  descend(pair, gradient);
  EXPECT_GT(before, 1);
  EXPECT_LT(missed_share(pair, gradient), 0.8);
  auto small = drawn(12, 4, 3);
  auto tiny = gradient;
  for (auto& value : tiny) value *= 1e-12F;
  descend(small, tiny);
  EXPECT_NEAR(missed_share(small, gradient), missed_share(pair, gradient), 1e-2) << "the gradient's size says nothing";
}

TEST(Descent, RefusesWhatIsNotFiniteAndLearnsNothingFromZero) {
  auto pair = drawn(12, 4, 3);
  const auto before = pack(pair.p);
  std::vector<float> gradient(kHigh * kWide);
  descend(pair, gradient);
  EXPECT_EQ(pack(pair.p), before);
  EXPECT_EQ(missed_share(pair, gradient), 0);
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(descend(pair, gradient), Error);
  EXPECT_THROW((void)missed_share(pair, std::span(gradient).first(5)), Error);
  EXPECT_EQ(pack(pair.p), before);
}

TEST(PublishedTransfer, IsThePapersFormula) {
  const auto before = drawn(12, 4, 1), after = drawn(12, 4, 2);
  const auto a = Dense(after.p).turned() * Dense(before.p), b = Dense(after.q).turned() * Dense(before.q);
  auto first = testing::white(144, 3), second = testing::white(144, 4);
  for (auto& value : second) value *= value;
  const auto m = a * Dense(12, 12, first) * b.turned();
  const auto v = squared(a) * Dense(12, 12, second) * squared(b).turned();
  carry_first(before, after, first);
  carry_second(before, after, second);
  for (std::size_t i = 0; i < 144; ++i) {
    EXPECT_NEAR(m.values[i], first[i], 1e-4 * (1 + std::abs(m.values[i])));
    EXPECT_NEAR(v.values[i], second[i], 1e-4 * (1 + v.values[i]));
    EXPECT_GE(second[i], 0);
  }
}

/// Pᵀ G Q.
std::vector<float> projected(const Projectors& pair, const std::vector<float>& gradient) {
  const auto s = Dense(pair.p).turned() * Dense(kHigh, kWide, gradient) * Dense(pair.q);
  return {s.values.begin(), s.values.end()};
}

TEST(PublishedMatrix, AStepIsAdamInTheSubspaceAtTheRateAsItIs) {
  constexpr double kRate = 1e-2, kDecay = 0.1;
  PublishedMatrix matrix({.shape = {.rows = kHigh, .columns = kWide, .rank = 12}, .seed = 3});
  testing::Weight weight(testing::white(kHigh * kWide, 1));
  Dense expected(kHigh, kWide, weight.master()), m(12, 12), v(12, 12);
  matrix.refit(testing::gradient_like(kHigh, kWide, 4, 2));
  const auto p = Dense(matrix.pair().p), q = Dense(matrix.pair().q);
  for (int step = 1; step <= 4; ++step) {
    const auto s =
        projected(matrix.pair(), testing::gradient_like(kHigh, kWide, 4, 10 + static_cast<std::uint64_t>(step)));
    matrix.step(
        kernels::Weights::bf16, s,
        {.learning_rate = kRate, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = kDecay, .step = step},
        weight.span());
    Dense delta(12, 12);
    for (std::size_t i = 0; i < 144; ++i) {
      m.values[i] = 0.9 * m.values[i] + 0.1 * s[i];
      v.values[i] = 0.99 * v.values[i] + 0.01 * static_cast<double>(s[i]) * s[i];
      const double root = std::sqrt(v.values[i] / (1 - std::pow(0.99, step)));
      delta.values[i] = -kRate * m.values[i] / (1 - std::pow(0.9, step)) / (root + 1e-8);
    }
    const auto change = p * delta * q.turned();
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      expected.values[i] = (1 - kRate * kDecay) * expected.values[i] + change.values[i];
    }
  }
  const auto found = weight.master();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(expected.values[i], found[i], 2e-5);
}

TEST(PublishedMatrix, LearnsAgainBeyondAlphaAtNewPlacesAndCarriesTheMoments) {
  PublishedMatrix matrix({.shape = {.rows = kHigh, .columns = kWide, .rank = 12}, .threshold = 0.95, .seed = 3});
  const auto gradient = testing::gradient_like(kHigh, kWide, 2, 2), other = testing::gradient_like(kHigh, kWide, 2, 77);
  matrix.refit(gradient);
  EXPECT_EQ(matrix.refits(), 1U);
  EXPECT_LT(matrix.missed(), 0.8);
  matrix.refit(gradient);
  EXPECT_FALSE(matrix.refitted()) << "no more than alpha is missed";
  const auto before = matrix.pair();
  matrix.refit(other);
  ASSERT_TRUE(matrix.refitted());
  EXPECT_EQ(pack(matrix.pair().p), pack(before.p)) << "S of this step was made with it";
  EXPECT_LT(matrix.missed(), 0.95);
  auto s = projected(before, other);
  std::vector<float> weight(kHigh * kWide);
  matrix.step(kernels::Weights::fp32, s,
              {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .step = 1},
              {.weight = reinterpret_cast<std::byte*>(weight.data()), .n = weight.size()});
  EXPECT_EQ(matrix.refits(), 2U);
  EXPECT_FALSE(matrix.refitted());
  EXPECT_NE(matrix.pair().p.places(), before.p.places());
  auto first = s, second = s;
  for (auto& value : first) value *= 0.1F;
  for (auto& value : second) value *= 0.01F * value;
  carry_first(before, matrix.pair(), first);
  carry_second(before, matrix.pair(), second);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_NEAR(first[i], matrix.moment(0)[i], 1e-4 * (1 + std::abs(first[i])));
    EXPECT_NEAR(second[i], matrix.moment(1)[i], 1e-4 * (1 + second[i]));
  }
}

TEST(PublishedMatrix, ContinuesFromASavedStateBitByBit) {
  const PublishedOptions options{.shape = {.rows = kHigh, .columns = kWide, .rank = 12}, .threshold = 0.5, .seed = 3};
  PublishedMatrix whole(options), second(options);
  std::vector<float> weight(kHigh * kWide), other;
  const auto go = [&](PublishedMatrix& it, std::vector<float>& to, int step) {
    const auto gradient = testing::gradient_like(kHigh, kWide, 2, static_cast<std::uint64_t>(step));
    it.refit(gradient);
    it.step(kernels::Weights::fp32, projected(it.pair(), gradient),
            {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .step = step},
            {.weight = reinterpret_cast<std::byte*>(to.data()), .n = to.size()});
  };
  for (int step = 1; step <= 3; ++step) go(whole, weight, step);
  other = weight;
  second.restore(pack(whole.pair().p), pack(whole.pair().q), whole.refits(), whole.missed());
  for (std::size_t which : {0, 1}) second.moment(which) = whole.moment(which);
  for (int step = 4; step <= 6; ++step) go(whole, weight, step), go(second, other, step);
  EXPECT_EQ(weight, other);
  EXPECT_EQ(whole.refits(), second.refits());
  EXPECT_GT(whole.refits(), 3U);
  const auto before = pack(second.pair().p);
  EXPECT_THROW(second.restore(before, before, 1, 0), Error);
  EXPECT_EQ(pack(second.pair().p), before);
}

TEST(PublishedMatrix, RefusesWhatMatrixRefuses) {
  EXPECT_THROW(PublishedMatrix({.shape = {.rows = 24, .columns = 40, .rank = 10}}), Error);
  EXPECT_THROW(PublishedMatrix({.shape = {.rows = 24, .columns = 40, .rank = 28}}), Error);
  PublishedMatrix matrix({.shape = {.rows = 24, .columns = 40}});
  EXPECT_EQ(matrix.rank(), 12U);
  std::vector<float> s(144), weight(24 * 40);
  const kernels::UpdateSpan span{.weight = reinterpret_cast<std::byte*>(weight.data()), .n = weight.size()};
  EXPECT_THROW(matrix.step(kernels::Weights::fp32, s, {.step = 1}, span), Error) << "before the first projectors";
  matrix.refit(testing::gradient_like(24, 40, 2, 1));
  EXPECT_THROW(matrix.step(kernels::Weights::fp32, std::span(s).first(5), {.step = 1}, span), Error);
}

}  // namespace
}  // namespace spillway::subspace
