#include "spillway/plan/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

std::ptrdiff_t set(const std::vector<bool>& flags) {
  return std::ranges::count(flags, true);
}

TEST(Units, WithoutAPathEverythingStays) {
  const test::Case it;
  const Units units(it.problem(), std::nullopt);
  EXPECT_EQ(units.free(), 0U);
  const auto all = units.with(0);
  EXPECT_TRUE(units.all_stay(all));
  for (const auto* flags : {&all.weight, &all.state, &all.activation}) {
    EXPECT_TRUE(std::ranges::all_of(*flags, std::identity{}));
  }
}

TEST(Units, WhatIsFreeIsKeptWeightsFirst) {
  auto it = test::Case().with_path();
  const Units units(it.problem(), std::nullopt);
  const auto none = units.with(0);
  EXPECT_EQ(set(none.weight) + set(none.state) + set(none.activation), 0);
  const auto some = units.with(units.free() / 4);
  EXPECT_GT(set(some.weight), 0);
  EXPECT_EQ(set(some.state), 0);
  EXPECT_TRUE(units.all_stay(units.with(units.free())));
  EXPECT_FALSE(units.all_stay(units.with(units.free() - 1)));
}

TEST(Units, AGradientThatIsLoggedIsKeptLast) {
  auto it = test::Case().with_path();
  const Units plain(it.problem(), std::nullopt), durable(it.problem(Durability::step), std::nullopt);
  EXPECT_LT(set(plain.with(plain.free() - 1).state), set(durable.with(durable.free() - 1).state));
}

TEST(Units, AShareThatIsAskedForIsFixed) {
  auto it = test::Case().with_path();
  it.budget.placement.state = 0.5;
  const Units units(it.problem(), std::nullopt);
  const auto chunks = static_cast<double>(it.layout.chunks().size());
  EXPECT_NEAR(static_cast<double>(set(units.with(0).state)), chunks / 2, 0.15 * chunks);
  EXPECT_EQ(set(units.with(units.free()).state), set(units.with(0).state)) << "nothing of it is free";
}

TEST(Units, WhatLivesOnADeviceCountsAsKept) {
  auto it = test::Case().with_path();
  const auto chunks = it.layout.chunks().size();
  DeviceResidency device{.weight = std::vector<bool>(chunks, false), .activation = std::vector<bool>(4, false)};
  device.state.assign(chunks, false);
  const auto& block = it.layout.blocks()[1];
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) device.state[c] = true;
  const auto least = least_residency(it.problem(), device);
  for (Index c = 0; c < chunks; ++c) EXPECT_EQ(least.weight[c], device.lives(c)) << c;
  EXPECT_LT(Units(it.problem(), device).free(), Units(it.problem(), std::nullopt).free());
}

}  // namespace
}  // namespace spillway::plan
