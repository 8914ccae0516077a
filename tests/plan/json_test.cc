#include "spillway/plan/json.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

constexpr const char* kNodes = R"({"dram_budget": 1e9, "update_cores": 10, "nodes": [
  {"id": 0, "capacity": 4000, "update": 8e9, "update_thread": 1e9, "read": 2e11},
  {"id": 2, "capacity": 5000, "update": 1e9, "update_thread": 5e8}]})";

TEST(Json, NodesAreBudgetsAndRates) {
  const auto budget = parse_budget(kNodes);
  ASSERT_EQ(budget.nodes.size(), 2U);
  EXPECT_EQ(budget.nodes[1].id, 2U);
  EXPECT_EQ(budget.nodes[1].capacity, 5000U);
  EXPECT_EQ(budget.nodes[1].name(), "numa:2");
  const auto rates = parse_rates(kNodes, {.cores = 16});
  ASSERT_EQ(rates.nodes.size(), 2U);
  EXPECT_EQ(rates.nodes[0].read, 2e11);
  EXPECT_EQ(rates.nodes[0].threads, 8U) << "eight of its threads fill the first, two the second";
  EXPECT_EQ(rates.nodes[1].threads, 2U);
  EXPECT_EQ(rates.nodes[0].with(4), 4e9);
  EXPECT_EQ(rates.nodes[0].with(12), 8e9);
}

TEST(Json, WithoutCoresOfTheirOwnUpdatesHaveThoseOfCompute) {
  std::string shared = kNodes;
  shared.replace(shared.find("10"), 2, "0 ");
  const auto rates = parse_rates(shared, {.cores = 16});
  EXPECT_EQ(rates.nodes[0].threads, 12U) << "15, since the caller takes part";
  EXPECT_EQ(rates.nodes[1].threads, 3U);
  for (const auto& node : parse_rates(shared, {.cores = 2}).nodes) EXPECT_EQ(node.threads, 1U);
  EXPECT_TRUE(parse_budget(R"({"dram_budget": 1})").nodes.empty());
}

TEST(Json, NodesThatMakeNoSenseAreRefusedByKey) {
  for (const auto* nodes : {R"([{"id": -1, "capacity": 1}])", R"([{"id": 0}])", R"([{"id": 0, "capacity": "much"}])"}) {
    EXPECT_THROW(static_cast<void>(parse_budget(text(R"({"dram_budget": 1, "nodes": )", nodes, "}"))), Error) << nodes;
  }
  const auto* rates = R"({"nodes": [{"id": 0, "capacity": 1, "update": -5}]})";
  EXPECT_THROW(static_cast<void>(parse_rates(rates, {})), Error);
}

}  // namespace
}  // namespace spillway::plan
