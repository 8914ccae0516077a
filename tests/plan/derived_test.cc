#include "spillway/plan/derived.h"

#include <gtest/gtest.h>

#include <cmath>

#include "spillway/base/error.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

constexpr double kRate = 1e9;

machine::ProductRate product_rate(std::uint64_t tokens, std::uint64_t inner, std::uint64_t outer, double rate) {
  return {tokens, inner, outer, rate, rate / 2, rate / 4};
}

machine::Profile cpu_profile() {
  machine::Profile out;
  out.machine = "a test";
  out.cores = 2;
  machine::ComputeProfile compute{.dtype = "bf16"};
  compute.products = {product_rate(64, 64, 64, kRate), product_rate(64, 64, 256, 2 * kRate)};
  out.compute.push_back(compute);
  return out;
}

TEST(ComputeRates, AShapeThatWasMeasuredHasItsRateAndOneBetweenHasOneBetween) {
  const auto rates = ComputeRates::read_cpus(cpu_profile(), state::ComputeType::bf16);
  EXPECT_DOUBLE_EQ(rates.product(Product::forward, 64, 64, 64), kRate);
  EXPECT_DOUBLE_EQ(rates.product(Product::input, 64, 64, 256), kRate);
  EXPECT_DOUBLE_EQ(rates.product(Product::weight, 64, 64, 64), kRate / 4);
  const auto middle = rates.product(Product::forward, 64, 64, 128);
  EXPECT_NEAR(middle, std::sqrt(2.0) * kRate, 1e-3 * kRate);
  EXPECT_LE(rates.product(Product::forward, 1e6, 1e6, 1e6), 2 * kRate);
  EXPECT_DOUBLE_EQ(rates.elementwise_seconds(1e9), 0) << "which nobody measured";
}

TEST(ComputeRates, AShapeThatFillsNoLinesIsLikeOthersThatDoNot) {
  auto profile = cpu_profile();
  profile.compute[0].products.push_back(product_rate(64, 64, 120, kRate / 8));
  const auto rates = ComputeRates::read_cpus(profile, state::ComputeType::bf16);
  EXPECT_LT(rates.product(Product::forward, 64, 64, 121), kRate / 7);
  EXPECT_NEAR(rates.product(Product::forward, 64, 64, 128), 0.925 * kRate, 5e-3 * kRate) << "a fifth is of its unlike";
  EXPECT_DOUBLE_EQ(rates.product(Product::forward, 64, 64, 256), 2 * kRate);
}

TEST(ComputeRates, AProfileThatSaysLessIsTakenAtItsWord) {
  machine::Profile profile;
  profile.machine = "a test";
  EXPECT_THROW(static_cast<void>(ComputeRates::read_cpus(profile, state::ComputeType::fp32)), Error);
  profile.compute_flops_per_second = kRate;
  const auto rate = ComputeRates::read_cpus(profile, state::ComputeType::fp32).product(Product::weight, 7, 8, 9);
  EXPECT_NEAR(rate, kRate, 1);
  profile.layers = {
      {.hidden = 64, .intermediate = 64, .tokens = 64, .flops_per_second = 1, .fp32_flops_per_second = 2}};
  EXPECT_NEAR(ComputeRates::read_cpus(profile, state::ComputeType::fp32).product(Product::input, 7, 8, 9), 2, 1e-9);
  EXPECT_NEAR(ComputeRates::read_cpus(profile, state::ComputeType::bf16).product(Product::input, 7, 8, 9), 1, 1e-9);
}

ComputeRates one_rate(double elementwise = 0) {
  return ComputeRates::read_gpu({.flops_per_second = kRate, .elementwise_bytes_per_second = elementwise});
}

struct Derived {
  Description description;
  Rates rates;

  explicit Derived(const test::Shape& shape, const ComputeRates& compute, const StepShape& step)
      : description(test::describe(shape)) {
    derive_seconds(description, description.layout(), step, compute, rates);
  }
};

constexpr StepShape kStep{.sequence = 32, .batch = 2, .query = 64, .key = 32, .feed_forward = 96};
constexpr double kTokens = 64;

/// Products alone: forward one of each matrix, backward one recomputed and two for gradients.
TEST(Derived, ProductsAreOperationsOverTheirRate) {
  test::Shape shape{.hidden = 64, .ffn = 96, .tokens = 128, .micro_batches = 2};
  const Derived whole(shape, one_rate(), kStep);
  const auto products = 2 * (2 * kTokens * 64 * 96) * 2 / kRate;  // two matrices, two micro-batches
  const auto attention = 2 * (2.0 * 64 * 32 * kTokens) / kRate;
  EXPECT_NEAR(whole.rates.forward, products + attention, 1e-12);
  EXPECT_NEAR(whole.rates.backward, 3 * (products + attention), 1e-12);
  EXPECT_EQ(whole.rates.between, 0);
  EXPECT_EQ(whole.rates.tail_forward, 0) << "a norm is bound by memory alone";

  shape.frozen = "up|down";
  const Derived frozen(shape, one_rate(), kStep);
  EXPECT_NEAR(frozen.rates.forward, whole.rates.forward, 1e-12);
  EXPECT_NEAR(frozen.rates.backward, 2 * products + 3 * attention, 1e-12);
}

TEST(Derived, WhatIsBoundByMemoryIsBytesOverItsBandwidth) {
  const test::Shape shape{.hidden = 64, .ffn = 96, .tokens = 128, .micro_batches = 2};
  const Derived none(shape, one_rate(), kStep), some(shape, one_rate(1e9), kStep), twice(shape, one_rate(2e9), kStep);
  for (const auto seconds : {&Rates::forward, &Rates::backward, &Rates::tail_forward, &Rates::tail_backward,
                             &Rates::head_loss, &Rates::head_gradient, &Rates::between}) {
    EXPECT_GT(some.rates.*seconds, none.rates.*seconds);
    EXPECT_NEAR(some.rates.*seconds - none.rates.*seconds, 2 * (twice.rates.*seconds - none.rates.*seconds), 1e-12);
  }
}

/// Once for all micro-batches: the codes are read, and a copy of the layer is written.
TEST(Derived, PackedWeightsAreConvertedOncePerPass) {
  test::Shape shape{.layers = 1, .hidden = 64, .ffn = 96, .tokens = 128, .micro_batches = 2, .frozen = "up|down"};
  const Derived whole(shape, one_rate(1e9), kStep);
  shape.packed = shape.frozen;
  const Derived packed(shape, one_rate(1e9), kStep);
  const auto layout = packed.description.layout();
  const auto& block = layout.blocks()[1];
  Bytes bytes = 0;
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    const auto& chunk = layout.chunks()[c];
    bytes += state::weight_bytes(packed.description.rule(), chunk) + 2 * chunk.values();
  }
  EXPECT_NEAR(packed.rates.forward - whole.rates.forward, static_cast<double>(bytes) / 1e9, 1e-12);
  EXPECT_NEAR(packed.rates.backward - whole.rates.backward, static_cast<double>(bytes) / 1e9, 1e-12);
}

TEST(Derived, TheWorkingSetGrowsWithTokensAndIsNeverLessThanTheHeads) {
  const auto description = test::describe({.hidden = 64, .ffn = 96});
  const auto layout = description.layout();
  auto step = kStep;
  const auto small = derive_work(description, layout, step);
  step.sequence *= 4;
  const auto large = derive_work(description, layout, step);
  EXPECT_GT(large, 3 * small);
  EXPECT_LT(large, 4 * small + 1);
}

}  // namespace
}  // namespace spillway::plan
