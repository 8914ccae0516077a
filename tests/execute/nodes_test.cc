// Parts of an arena and lanes of updates by tier: nodes of this machine by their numbers, others anywhere.
#include "spillway/execute/nodes.h"

#include <gtest/gtest.h>

#include "spillway/memory/arena.h"
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
    plan.placement.set_nodes(nodes);
  }
  [[nodiscard]] OnNodes found(const std::vector<NodeOptions>& options) const {
    const std::vector<std::byte> arena(plan.arena, std::byte{1});
    return on_nodes(plan, planned.layout, planned.description.rule(), budget, options, arena);
  }

  [[nodiscard]] static std::vector<Bytes> bytes(const OnNodes& found) {
    std::vector<Bytes> out;
    for (const auto& held : found.held) out.push_back(held.there);
    return out;
  }

  const test::Planned planned;
  plan::Plan plan;
  plan::Budget budget;
};

TEST_F(NodesTest, PartsOfTheArenaAreMadeOfWhatTheirTierIs) {
  const auto parts = arena_parts(plan, budget, {{.backing = memory::anywhere()}});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].backing, memory::anywhere());
  EXPECT_EQ(parts[1].begin, plan.regions[1].begin);
  EXPECT_EQ(parts[1].end, plan.arena);
  EXPECT_EQ(parts[1].backing, memory::on_node(901));
  EXPECT_EQ(arena_parts(plan, budget, {})[0].backing, memory::on_node(900));
}

TEST_F(NodesTest, AFileHasItsPartAndALaneOfAnyThreads) {
  const spillway::test::Directory where;
  const std::vector<NodeOptions> options{{.backing = memory::anywhere()}, {.backing = memory::in_file(where.path())}};
  const memory::Arena arena(plan.arena, arena_parts(plan, budget, options));
  const auto there = on_nodes(plan, planned.layout, planned.description.rule(), budget, options, arena.span());
  EXPECT_EQ(bytes(there), (std::vector{plan.regions[0].bytes(), plan.regions[1].bytes()}));
  EXPECT_TRUE(there.elsewhere.empty());
  EXPECT_EQ(update_lanes(budget, {}, options)[1].near, std::nullopt);
}

TEST_F(NodesTest, EachHasALaneOfItsThreads) {
  plan::Rates rates;
  rates.nodes = {{.threads = 3}};
  const auto lanes = update_lanes(budget, rates, {{}, {.backing = memory::anywhere(), .limit = 1e6}});
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].threads, 3U);
  EXPECT_EQ(lanes[0].near, 900);
  EXPECT_EQ(lanes[0].limit, 0);
  EXPECT_EQ(lanes[1].threads, 1U) << "of a node whose rates are not known";
  EXPECT_EQ(lanes[1].near, std::nullopt);
  EXPECT_EQ(lanes[1].limit, 1e6);
}

TEST_F(NodesTest, OneThatMayLieAnywhereHasWhatIsPlannedForIt) {
  const auto there = found({{.backing = memory::anywhere()}, {.backing = memory::anywhere()}});
  EXPECT_EQ(bytes(there), (std::vector{plan.regions[0].bytes(), plan.regions[1].bytes()}));
  EXPECT_TRUE(there.elsewhere.empty());
}

TEST_F(NodesTest, WhatLiesOnAnotherNodeIsNamed) {
  const auto there = found({{.backing = memory::anywhere()}, {}});
  EXPECT_EQ(bytes(there), (std::vector<Bytes>{plan.regions[0].bytes(), 0}));
  EXPECT_EQ(there.elsewhere, std::vector{planned.layout.chunks().size() - 1});
}

}  // namespace
}  // namespace spillway::execute
