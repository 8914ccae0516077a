// Memory and threads of a run, with a device and without.
#include "spillway/execute/resources.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::Planned;

test::PlanOptions no_path(bool device) {
  return {.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0, .device = device};
}

TEST(Resources, AreTheArenaOfThePlan) {
  const Planned planned(no_path(false));
  const Resources resources(planned.run_plan(), 0, {});
  EXPECT_EQ(resources.host().size(), planned.plan.arena);
  EXPECT_EQ(resources.scratch().size(), planned.plan.arena - planned.plan.resident);
  EXPECT_EQ(resources.scratch().data(), resources.host().data() + planned.plan.resident);
  EXPECT_EQ(resources.computing().data(), resources.host().data());
  EXPECT_EQ(resources.device(), nullptr);
  EXPECT_EQ(resources.arenas().of(plan::TierKind::device), nullptr);
}

TEST(Resources, HaveTheMemoryOfADevice) {
  const Planned planned(no_path(true));
  const Resources resources(planned.run_plan(), 1, {});
  ASSERT_NE(resources.device(), nullptr);
  EXPECT_EQ(resources.computing().data(), resources.device()->memory().data());
  EXPECT_NE(resources.computing().data(), resources.host().data());
  EXPECT_EQ(resources.arenas().of(plan::TierKind::device), resources.computing().data());
  const auto& workspace = resources.arithmetic();
  EXPECT_EQ(workspace.workspace + workspace.sizes.bytes(), resources.computing().data() + planned.plan.device_arena);
}

TEST(Resources, ComputeWithTheirThreads) {
  const Planned planned(no_path(false));
  Resources resources(planned.run_plan(), 3, {});
  std::vector<float> values(200'000, 2), sum(values.size(), 1);
  resources.compute(device::Sum{.type = device::Element::fp32,
                                .values = reinterpret_cast<const std::byte*>(values.data()),
                                .sum = sum.data(),
                                .n = sum.size(),
                                .first = false});
  EXPECT_EQ(sum, std::vector<float>(values.size(), 3));
  std::vector<int> tiles(50);
  resources.parallel_for().run(tiles.size(), [&](std::size_t tile) { ++tiles[tile]; });
  resources.thread_pool().run(tiles.size(), [&](std::size_t tile) { ++tiles[tile]; });
  EXPECT_EQ(tiles, std::vector<int>(50, 2));
}

}  // namespace
}  // namespace spillway::execute
