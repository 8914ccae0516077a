#include "spillway/plan/search.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/plan/early_updates.h"
#include "spillway/plan/prediction.h"
#include "spillway/plan/refusals.h"
#include "spillway/plan/requests.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

TEST(Lookahead, EachLevelIsAtLeastAsLongAndNoneExceedsTheChunks) {
  const test::Case it;
  auto before = lookahead_at(it.problem(), 0, 1);
  for (std::uint32_t level = 1; level < 200; ++level) {
    const auto now = lookahead_at(it.problem(), level, 1);
    EXPECT_GE(now.state_read, before.state_read);
    EXPECT_GE(now.backward, before.backward);
    EXPECT_LE(now.state_read, it.layout.chunks().size());
    EXPECT_LE(now.weight_read, 8U);
    before = now;
  }
}

TEST(Search, MoreRoomIsNeverSlower) {
  const auto it = test::Case().with_path();
  const auto problem = it.problem();
  const Units units(problem);
  const auto least = smallest_arena(problem);
  EXPECT_FALSE(search(problem, units, {.arena = least - 1}, 1));
  double before = 1e9;
  for (const Bytes more : {Bytes{0}, least / 2, least, 100 * MiB}) {
    const auto found = search(problem, units, {.arena = least + more}, 1);
    ASSERT_TRUE(found);
    EXPECT_LE(found->laid_out.arena, least + more);
    auto schedule = found->laid_out.schedule;
    add_reuse_dependencies(schedule);
    const auto seconds = predict(problem, schedule).step_seconds;
    EXPECT_LE(seconds, before * 1.001);
    before = seconds;
  }
}

TEST(Search, WhatSpillsIsKnownWithoutAPlan) {
  auto it = test::Case().with_path();
  EXPECT_FALSE(spills(it.problem()));
  it.budget.dram = kEngineBytes + smallest_arena(it.problem());
  EXPECT_TRUE(spills(it.problem()));
  it.budget.dram = 1 * GiB;
  it.budget.placement.state = 0;
  EXPECT_TRUE(spills(it.problem()));
}

TEST(EarlyUpdates, AreThoseThatHaveRoomWhenAskedFor) {
  auto it = test::Case();
  it.budget.update_schedule = Updates::early;
  it.budget.clipping = false;
  const auto problem = it.problem();
  const Units units(problem);
  const Room room{.arena = 1 * GiB};
  const FittingProblem fitting{problem, units, room, 1};
  FittingComparison comparison(fitting);
  const Fitting deferred{.level = 1};
  ASSERT_TRUE(comparison.lay_out(deferred));
  const auto order = comparison.early_order(deferred);
  ASSERT_FALSE(order.empty());
  ASSERT_TRUE(has_open_early(fitting));
  compare_early(fitting, deferred, comparison, {fitting, {}, comparison});
  ASSERT_TRUE(comparison.lay_out(comparison.best_values()));
  const auto placement = comparison.take().placement;
  for (const auto c : order) EXPECT_EQ(placement[c].when, When::early);
  it.budget.update_schedule = Updates::deferred;
  EXPECT_FALSE(has_open_early(fitting));
}

ErrorCode refused(const Problem& problem) {
  try {
    check_request(problem);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::does_not_fit;  // not refused
}

TEST(Requests, WhatNoSizeMakesPossibleIsBadInput) {
  auto it = test::Case();
  EXPECT_NO_THROW(check_request(it.problem()));
  EXPECT_EQ(refused(it.problem(Durability::step)), ErrorCode::bad_input);
  it.budget.placement.grad = 0.5;
  EXPECT_EQ(refused(it.problem()), ErrorCode::bad_input);
  it.budget.placement = {};
  it.budget.update_schedule = Updates::early;
  EXPECT_EQ(refused(it.problem()), ErrorCode::bad_input);
  it.budget.speculative_updates = true;
  EXPECT_NO_THROW(check_request(it.problem()));
}

/// The MiB that a refusal names are the least that fit.
TEST(Refusals, NameABudgetThatFits) {
  auto it = test::Case();
  it.budget.dram = 1 * MiB;
  const auto problem = it.problem();
  const Units units(problem);
  const auto room = room_of(problem, 0);
  try {
    refuse(problem, units, room, 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const auto enough = ceil_div(room.fixed + smallest_arena(problem), MiB);
    EXPECT_NE(std::string(error.what()).find(text("--dram_budget ", enough, "MiB")), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--storage DIR"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway::plan
