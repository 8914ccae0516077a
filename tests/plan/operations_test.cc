#include "spillway/plan/operations.h"

#include <gtest/gtest.h>

#include <cmath>

namespace spillway::plan {
namespace {

machine::ComputeProfile measured() {
  machine::ComputeProfile out{.dtype = "fp32"};
  out.products = {{64, 64, 64, 1e9, 5e8, 2.5e8}};
  out.attention = {
      {.tokens = 128, .forward_flops_per_second = 1e9, .backward_flops_per_second = 5e8, .head_size = 64},
      {.tokens = 128, .forward_flops_per_second = 4e9, .backward_flops_per_second = 2e9, .head_size = 128}};
  out.elementwise_bytes_per_second = 1e6;
  out.operations = {{"mul", false, 1000, 1e6}, {"mul", false, 100000, 1e8}, {"mul", true, 1000, 5e5}};
  out.call_seconds = 1e-3;
  out.libraries_bytes = 7 * MiB;
  return out;
}

ComputeRates rates() {
  machine::Profile profile;
  profile.machine = "a test";
  profile.compute = {measured()};
  return ComputeRates::read_cpus(profile, state::ComputeType::fp32);
}

TEST(OperationRates, LieBetweenTheSizesThatWereMeasured) {
  const auto found = rates();
  EXPECT_TRUE(found.knows_operations());
  EXPECT_EQ(found.libraries_bytes(), 7 * MiB);
  EXPECT_DOUBLE_EQ(found.operation_seconds("mul", false, 1000), 1e-3);
  EXPECT_DOUBLE_EQ(found.operation_seconds("mul", false, 10), 1e-5) << "smaller ones have the rate of the smallest";
  EXPECT_DOUBLE_EQ(found.operation_seconds("mul", false, 1e6), 1e-2) << "larger ones that of the largest";
  EXPECT_NEAR(found.operation_seconds("mul", false, 1e4), 1e4 / 1e7, 1e-9);
  EXPECT_DOUBLE_EQ(found.operation_seconds("mul", true, 1000), 2e-3);
  EXPECT_DOUBLE_EQ(found.operation_seconds("unheard_of", false, 2e6), 2) << "as operations on each element";
  machine::Profile plain;
  plain.compute_flops_per_second = 1e9;
  EXPECT_FALSE(ComputeRates::read_cpus(plain, state::ComputeType::fp32).knows_operations());
}

machine::GpuProfile gpu() {
  return {.flops_per_second = 1e12,
          .elementwise_bytes_per_second = 1e9,
          .attention_forward_flops_per_second = 4e11,
          .attention_backward_flops_per_second = 2e11,
          .call_seconds = 1e-5};
}

TEST(OperationRates, OfAGpuAreItsProfiles) {
  const auto found = ComputeRates::read_gpu(gpu());
  EXPECT_TRUE(found.knows_operations());
  EXPECT_NEAR(found.product(Product::weight, 100, 2000, 30), 1e12, 1);
  EXPECT_NEAR(found.attention(4096, false, 64), 4e11, 1);
  EXPECT_NEAR(found.attention(4096, true, 128), 2e11, 1);
  EXPECT_DOUBLE_EQ(found.operation_seconds("mul", true, 5e6), 5e-3);
  auto plain = gpu();
  plain.attention_forward_flops_per_second = plain.elementwise_bytes_per_second = 0;
  EXPECT_FALSE(ComputeRates::read_gpu(plain).knows_operations()) << "the rest is part of its rate of products";
  EXPECT_NEAR(ComputeRates::read_gpu(plain).attention(4096, false), 1e12, 1);
}

TEST(Operations, AGpuTakesTheLongerOfItsOperationsAndTheHostsCalls) {
  const auto rates = ComputeRates::read_gpu(gpu());
  PassOperations found{.products = {{.tokens = 100, .inner = 1000, .outer = 1000, .calls = 5}},
                       .elements = {{.operation = "mul", .bytes = 1e6, .calls = 2}},
                       .calls = 10};
  EXPECT_DOUBLE_EQ(seconds_of(found, rates), 1e-3 + 2e-3);
  found.calls = 1000;
  EXPECT_DOUBLE_EQ(seconds_of(found, rates), 1e-2);
}

TEST(OperationRates, AttentionIsThatOfTheNearestRowsAndHeads) {
  EXPECT_DOUBLE_EQ(rates().attention(128, false, 64), 1e9);
  EXPECT_DOUBLE_EQ(rates().attention(128, true, 128), 2e9);
  const auto between = rates().attention(128, false, 96);
  EXPECT_TRUE(between > 1e9 && between < 4e9) << between;
}

TEST(Operations, APassIsItsOperationsOneAfterTheOther) {
  const PassOperations forward{
      .products = {{.product = Product::forward, .tokens = 64, .inner = 64, .outer = 64, .calls = 2},
                   {.product = Product::weight, .tokens = 64, .inner = 64, .outer = 64}},
      .attention = {{.tokens = 128, .head_size = 64, .operations = 1e6, .backward = true, .calls = 0.5}},
      .elements = {{.operation = "mul", .bytes = 1000, .calls = 4}},
      .calls = 3};
  const PassOperations once{.products = {}, .attention = {}, .elements = {{.operation = "convert", .bytes = 1e6}}};
  const TracedPasses passes{{"forward", {.each = forward, .once = once}}};
  const double product = 2.0 * 64 * 64 * 64;
  const double each = 2 * product / 1e9 + product / 2.5e8 + 0.5 * 1e6 / 5e8 + 4 * 1e-3 + 3 * 1e-3;
  EXPECT_NEAR(seconds_of(passes, "forward", 1, rates()), each + 1, 1e-9);
  EXPECT_NEAR(seconds_of(passes, "forward", 3, rates()), 3 * each + 1, 1e-9) << "weights are converted once";
  EXPECT_EQ(seconds_of(passes, "tail_forward", 3, rates()), 0);
  EXPECT_NEAR(attention_seconds(passes.at("forward").each, rates()), 0.5 * 1e6 / 5e8, 1e-12);
}

}  // namespace
}  // namespace spillway::plan
