// Parts of an arena and lanes of updates by node: those of this machine by their numbers, pretended ones anywhere.
#include "spillway/execute/nodes.h"

#include <gtest/gtest.h>

#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

class NodesTest : public ::testing::Test {
 protected:
  NodesTest()
      : planned({.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0}), plan(planned.plan) {
    budget.nodes = {{.id = 900, .capacity = 1 * GiB}, {.id = 901, .capacity = 1 * GiB}};  // no machine has them
    const auto half = round_up(plan.arena / 2, 4096);
    plan.regions = {{0, half, 0}, {half, plan.arena, 1}};
    std::vector<std::uint16_t> nodes(planned.layout.chunks().size(), 0);
    nodes.back() = 1;
    plan.residency.set_nodes(nodes);
  }
  [[nodiscard]] OnNodes found(const std::vector<NodeOptions>& options) const {
    const std::vector<std::byte> arena(plan.arena, std::byte{1});
    return on_nodes(plan, planned.layout, planned.description.rule(), budget, options, arena);
  }

  const test::Planned planned;
  plan::Plan plan;
  plan::Budget budget;
};

TEST_F(NodesTest, PartsOfTheArenaAreForRealOnes) {
  const auto parts = arena_parts(plan, budget, {{.pretended = true}});
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].begin, plan.regions[1].begin);
  EXPECT_EQ(parts[0].end, plan.arena);
  EXPECT_EQ(parts[0].node, 901);
  EXPECT_EQ(arena_parts(plan, budget, {}).size(), 2U);
}

TEST_F(NodesTest, EachHasALaneOfItsThreads) {
  plan::Rates rates;
  rates.nodes = {{.threads = 3}};
  const auto lanes = update_lanes(budget, rates, {{}, {.pretended = true, .limit = 1e6}});
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].threads, 3U);
  EXPECT_EQ(lanes[0].near, 900);
  EXPECT_EQ(lanes[0].limit, 0);
  EXPECT_EQ(lanes[1].threads, 1U) << "of a node whose rates are not known";
  EXPECT_EQ(lanes[1].near, std::nullopt);
  EXPECT_EQ(lanes[1].limit, 1e6);
}

TEST_F(NodesTest, APretendedOneHasWhatIsPlannedForIt) {
  const auto there = found({{.pretended = true}, {.pretended = true}});
  EXPECT_EQ(there.bytes, (std::vector{plan.regions[0].bytes(), plan.regions[1].bytes()}));
  EXPECT_TRUE(there.elsewhere.empty());
}

TEST_F(NodesTest, WhatLiesOnAnotherNodeIsNamed) {
  const auto there = found({{.pretended = true}, {}});
  EXPECT_EQ(there.bytes, (std::vector<Bytes>{plan.regions[0].bytes(), 0}));
  EXPECT_EQ(there.elsewhere, std::vector{planned.layout.chunks().size() - 1});
}

}  // namespace
}  // namespace spillway::execute
