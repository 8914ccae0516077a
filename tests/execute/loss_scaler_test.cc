#include "spillway/execute/loss_scaler.h"

#include <gtest/gtest.h>

namespace spillway::execute {
namespace {

void good(LossScaler& scaler, std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; ++s) scaler.ended(true);
}

TEST(LossScaler, HalvesAtOnceAndDoublesAfterManyGoodSteps) {
  LossScaler scaler(true);
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.ended(false);
  EXPECT_EQ(scaler.scale(), 32768);
  good(scaler, LossScaler::kGrowAfter - 1);
  EXPECT_EQ(scaler.scale(), 32768);
  scaler.ended(true);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, ABadStepStartsTheCountAnew) {
  LossScaler scaler(true);
  good(scaler, LossScaler::kGrowAfter - 1);
  scaler.ended(false);
  good(scaler, LossScaler::kGrowAfter - 1);
  EXPECT_EQ(scaler.state(), (LossScaler::State{32768, LossScaler::kGrowAfter - 1}));
}

TEST(LossScaler, StaysInItsRange) {
  LossScaler scaler(true);
  for (int s = 0; s < 40; ++s) scaler.ended(false);
  EXPECT_EQ(scaler.scale(), LossScaler::kLeast);
  good(scaler, 30 * LossScaler::kGrowAfter);
  EXPECT_EQ(scaler.scale(), LossScaler::kMost);
}

TEST(LossScaler, GoesOnFromWhereAnotherWas) {
  LossScaler whole(true), first(true), second(true);
  good(whole, 3000);
  good(first, 1500);
  second.restore(first.state());
  good(second, 1500);
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_EQ(second.scale(), 131072);
}

TEST(LossScaler, WhereNothingIsScaledItIsOne) {
  LossScaler scaler(false);
  scaler.restore({.scale = 8, .good = 3});
  scaler.ended(false);
  good(scaler, 5000);
  EXPECT_EQ(scaler.scale(), 1);
}

}  // namespace
}  // namespace spillway::execute
