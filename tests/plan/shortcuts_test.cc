// What the planner does not look at: each shortcut gives the answer of the long way.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "spillway/base/error.h"
#include "spillway/plan/fits.h"
#include "spillway/plan/planner.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

struct Asked {
  Description description;
  state::Layout layout;
  Budget budget;
  Rates rates;
};

/// Small models under budgets from hopeless to plenty, most of them with a path, some with shares that are fixed.
Asked random_request(std::mt19937& random, int round) {
  auto shape = test::random_shape(random, round);
  shape.hidden = 128;
  shape.ffn = 512;
  if (round % 7 == 3) test::freeze_some(shape, random);
  auto description = test::describe(shape);
  auto layout = description.layout();
  Asked out{.description = std::move(description), .layout = std::move(layout), .budget = {}, .rates = {}};
  out.budget.process = 2 * MiB;
  out.budget.work = 1 * MiB;
  out.budget.dram = 26 * MiB + (random() % 60) * 512 * KiB + (random() % 4 == 0 ? 64 * MiB : 0);
  out.rates.cores = 1 + random() % 3;
  out.rates.update = 1e9;
  out.rates.forward = 1e-3, out.rates.backward = 3e-3, out.rates.between = 1e-4;
  if (round % 4 != 1) {
    out.budget.paths = {{.name = "path:0", .capacity = GiB}};
    out.rates.paths = {{.read = 4e8, .write = 3e8, .mixed = 5e8}};
    if (random() % 3 == 0) out.budget.placement.state = 0.5;
  }
  return out;
}

std::optional<Plan> planned(const Asked& it, const Budget& budget) {
  try {
    return make_plan(it.description, it.layout, budget, it.rates);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit) << error.what();
    return std::nullopt;
  }
}

void expect_same(const Plan& plan, const Plan& other) {
  EXPECT_EQ(plan.durability, other.durability);
  EXPECT_EQ(plan.arena, other.arena);
  EXPECT_EQ(plan.dram_peak, other.dram_peak);
  EXPECT_EQ(plan.path_bytes, other.path_bytes);
  EXPECT_EQ(plan.written_per_step, other.written_per_step);
  EXPECT_EQ(plan.prediction.step_seconds, other.prediction.step_seconds);
  EXPECT_EQ(plan.placement, other.placement);
  EXPECT_EQ(plan.lookahead.state_read, other.lookahead.state_read);
}

TEST(Shortcuts, WhatHasToSpillIsPlannedDurableAtOnce) {
  std::mt19937 random(11);
  int spilled = 0, stayed = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const auto it = random_request(random, round);
    auto budget = it.budget;
    budget.durability = Durability::none;
    auto expected = planned(it, budget);
    if (expected && expected->path_bytes > 0) {
      budget.durability = Durability::step;
      expected = planned(it, budget);
    }
    const auto found = planned(it, it.budget);
    ASSERT_EQ(found.has_value(), expected.has_value());
    if (!found) {
      ++refused;
      continue;
    }
    ++(found->path_bytes > 0 ? spilled : stayed);
    expect_same(*found, *expected);
  }
  EXPECT_GT(spilled, 5);
  EXPECT_GT(stayed, 5);
  EXPECT_GT(refused, 2);
}

TEST(Shortcuts, MoreMemoryThanIsAmpleChangesNothing) {
  std::mt19937 random(12);
  int ample = 0, other = 0;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    const auto it = random_request(random, round);
    const auto found = planned(it, it.budget);
    if (!found) continue;
    ++(found->ample ? ample : other);
    if (!found->ample) continue;
    for (const Bytes more : {Bytes{1}, 5 * MiB, 3 * GiB}) {
      auto budget = it.budget;
      budget.dram += more;
      const auto larger = planned(it, budget);
      ASSERT_TRUE(larger.has_value());
      expect_same(*larger, *found);
    }
  }
  EXPECT_GT(ample, 5);
  EXPECT_GT(other, 5);
}

TEST(Shortcuts, WhatFitsWithNothingInMemoryHasAPlan) {
  std::mt19937 random(14);
  int fits = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const auto it = random_request(random, round);
    const bool least = least_fits(it.description, it.layout, it.budget, it.rates);
    const bool any = planned(it, it.budget).has_value();
    EXPECT_TRUE(any || !least);
    ++(any ? fits : refused);
    EXPECT_TRUE(least || !any || it.budget.has_path()) << "without a path there is no other";
  }
  EXPECT_GT(fits, 5);
  EXPECT_GT(refused, 2);
}

TEST(Shortcuts, ATableIsThePlannersWordOnEachOfItsCells) {
  std::mt19937 random(13);
  for (int round = 0; round < spillway::testing::few_or(4, 12); ++round) {
    SCOPED_TRACE(round);
    const auto it = random_request(random, round);
    FitRequest request{.description = it.description, .budget = it.budget, .rates = it.rates};
    request.sequence = 8;
    request.batch = 2;
    request.work_per_token = 32 * KiB;
    const auto table = find_fits(request).fit_table;
    const auto rates = table.tokens_per_second;
    const auto sequences = table.sequences;
    const auto batches = table.batches;
    auto cell = rates.begin();
    for (const auto dram : table.dram_budgets) {
      for (const auto sequence : sequences) {
        for (const auto batch : batches) {
          const auto tokens = static_cast<double>(sequence * batch);
          auto other = it;
          other.budget.dram = dram;
          other.budget.work =
              static_cast<Bytes>(static_cast<double>(it.budget.work) + (tokens - 16) * static_cast<double>(32 * KiB));
          other.description.tokens = 2 * sequence * batch;
          for (auto* seconds : {&other.rates.forward, &other.rates.backward, &other.rates.between}) {
            *seconds *= tokens / 16;
          }
          const auto plan = planned(other, other.budget);
          const auto expected =
              plan ? static_cast<double>(other.description.tokens) / plan->prediction.step_seconds : 0;
          EXPECT_NEAR(*cell++, expected, 1e-9 * expected) << dram << " " << sequence << " " << batch;
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::plan
