// Memory and room on paths for pieces that change places.
#include "spillway/plan/piece_staging.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/planner.h"
#include "tests/plan/case.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

constexpr test::Shape kExperts{.layers = 2, .experts = 20, .asked = 0.5};

TEST(PieceStaging, HoldsTwoOfTheLargestForEachPair) {
  const auto description = test::describe(kExperts);
  const auto layout = description.layout();
  Bytes largest = 0;
  for (const auto& chunk : layout.chunks()) {
    if (chunk.asked < 1) largest = std::max(largest, weight_bytes(description.rule(), chunk));
  }
  const auto staging = piece_staging(description, layout);
  EXPECT_EQ(staging.pair, 2 * round_up(largest, Bytes{4096}));
  EXPECT_GT(staging.pairs, 1U);
  EXPECT_LE(staging.pairs, 16U);
  EXPECT_LE(staging.bytes(), 16 * MiB);
}

TEST(PieceStaging, IsNoneWhereNothingCanMove) {
  auto sent = kExperts;
  sent.shard_frozen = true;
  for (const auto& shape : {test::Shape{.layers = 2}, test::Shape{.layers = 2, .experts = 20}, sent}) {
    const auto description = test::describe(shape);
    EXPECT_EQ(piece_staging(description, description.layout()).bytes(), 0U);
  }
}

TEST(PieceStaging, IsPartOfThePlan) {
  auto it = test::Case(kExperts).with_path();
  it.budget.durability = Durability::none;
  const auto description = it.description;
  const auto staging = piece_staging(description, it.layout);
  auto apart = it;
  apart.budget.placement.weight = 0.5;
  auto together = it;
  together.budget.placement.weight = 0;
  const auto some = make_plan(description, it.layout, apart.budget, it.rates);
  EXPECT_EQ(some.piece_staging, staging.bytes());
  const auto chunk = round_up(staging.pair / 2, 1 * MiB);
  Bytes far = 0;
  for (const auto& at : it.layout.chunks()) {
    if (!some.placement[at.id].weight.in_memory()) far += round_up(weight_bytes(description.rule(), at), 1 * MiB);
  }
  EXPECT_EQ(some.path_breakdown.at("weight"), far + staging.pairs * chunk);
  far = 0;
  for (const auto& at : it.layout.chunks()) far += round_up(weight_bytes(description.rule(), at), 1 * MiB);
  EXPECT_EQ(make_plan(description, it.layout, together.budget, it.rates).path_breakdown.at("weight"), far)
      << "all of them lie alike";
}

}  // namespace
}  // namespace spillway::plan
