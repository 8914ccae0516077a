// What fits: every cell is what the planner says of that step.
#include "spillway/plan/fits.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/plan/fits_fields.h"
#include "spillway/plan/planner.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

/// Two rows of 32 tokens, twice a step.
FitRequest request(Bytes dram = 64 * MiB) {
  FitRequest out;
  out.description = test::describe({.layers = 4, .ffn = 1024, .tokens = 128, .micro_batches = 2});
  out.budget.dram = dram;
  out.budget.process = 8 * MiB;
  out.budget.work = 4 * MiB;
  out.rates.cores = 2;
  out.rates.update = 1e9;
  out.rates.forward = 0.01, out.rates.backward = 0.02, out.rates.between = 0.001;
  out.sequence = 32;
  out.batch = 2;
  out.work_per_token = 64 * KiB;
  return out;
}

/// The planner's own word on micro-batches of `batch` rows of `sequence` tokens; 0: it does not fit.
double planned(FitRequest it, Bytes dram, std::uint64_t sequence, std::uint64_t batch) {
  const double times = static_cast<double>(sequence * batch) / 64;
  it.description.tokens = 2 * sequence * batch;
  it.budget.dram = dram;
  it.budget.work = static_cast<Bytes>(4.0 * MiB + (static_cast<double>(sequence * batch) - 64) * it.work_per_token);
  for (auto* seconds : {&it.rates.forward, &it.rates.backward, &it.rates.kept_backward, &it.rates.between})
    *seconds *= times;
  try {
    const auto plan = make_plan(it.description, it.description.layout(), it.budget, it.rates);
    return static_cast<double>(it.description.tokens) / plan.prediction.step_seconds;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    return 0;
  }
}

TEST(Fits, EveryCellIsWhatThePlannerSays) {
  const auto asked = request();
  const auto table = find_fits(asked).fit_table;
  const auto rates = table.tokens_per_second;
  auto cell = rates.begin();
  std::size_t fitting = 0;
  for (const auto budget : {32 * MiB, 64 * MiB, 128 * MiB}) {
    for (const std::uint64_t sequence : {16, 32, 64, 128}) {
      for (const std::uint64_t batch : {1, 2, 4}) {
        const auto expected = planned(asked, budget, sequence, batch);
        ASSERT_NE(cell, rates.end());
        EXPECT_NEAR(*cell, expected, 1e-9 * expected) << budget << " " << sequence << " " << batch;
        fitting += *cell++ > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(cell, rates.end());
  EXPECT_EQ(table.dram_budgets, (std::vector<Bytes>{32 * MiB, 64 * MiB, 128 * MiB}));
  EXPECT_EQ(table.sequences, (std::vector<std::uint64_t>{16, 32, 64, 128}));
  EXPECT_EQ(table.batches, (std::vector<std::uint64_t>{1, 2, 4}));
  EXPECT_GT(fitting, 0U);
  EXPECT_LT(fitting, rates.size()) << "the test is to see both";
}

/// The same on a device, where layers keep what autograd saves as far as there is room.
TEST(Fits, EveryCellOfADeviceIsWhatThePlannerSays) {
  auto asked = request();
  asked.description = test::describe({.layers = 4, .ffn = 1024, .tied = false, .tokens = 128, .micro_batches = 2});
  asked.budget.streams_weights = true;
  asked.budget.saved_activations = {.blocks = {1, 2, 3, 4}, .token_bytes = 8192, .on_device = true, .layers = 4};
  asked.rates.update = 1e8;
  asked.rates.to_device = asked.rates.from_device = 1e9;
  asked.rates.device_update = 1e10;
  asked.rates.kept_backward = 0.01;
  std::size_t few = 0, ample = 0;
  for (const auto capacity : {2 * MiB, 3 * MiB, 4 * MiB, 6 * MiB, 64 * MiB}) {
    asked.budget.device = DeviceTier{.capacity = capacity, .work = 64 * KiB};
    const auto table = find_fits(asked).fit_table.tokens_per_second;
    auto cell = table.begin();
    for (const auto budget : {32 * MiB, 64 * MiB, 128 * MiB}) {
      for (const std::uint64_t sequence : {16, 32, 64, 128}) {
        for (const std::uint64_t batch : {1, 2, 4}) {
          const auto expected = planned(asked, budget, sequence, batch);
          EXPECT_NEAR(*cell, expected, 1e-9 * expected) << capacity << " " << budget << " " << sequence << " " << batch;
          ++cell;
        }
      }
    }
    if (planned(asked, 64 * MiB, 32, 2) == 0) continue;
    const auto plan = make_plan(asked.description, asked.description.layout(), asked.budget, asked.rates);
    few += plan.keeping.size() < 4 ? 1U : 0U;
    ample += plan.ample ? 1U : 0U;
  }
  EXPECT_GT(few, 0U) << "the test is to see a device that lacks room";
  EXPECT_GT(ample, 0U) << "and host memory that does not";
}

TEST(Fits, ALongerSequenceThanTheLongestDoesNotFit) {
  auto asked = request();
  asked.work_per_token = 256 * KiB;
  const auto longest = find_fits(asked).longest_sequence;
  ASSERT_GT(longest, 0U);
  ASSERT_LT(longest, 128U) << "the test is to see one that does not fit";
  EXPECT_EQ(longest % 32, 0U);
  EXPECT_GT(planned(asked, asked.budget.dram, longest, 2), 0);
  EXPECT_EQ(planned(asked, asked.budget.dram, longest + 32, 2), 0);
}

TEST(Fits, SequencesBeyondFourTimesThatOfTheDryRunAreNotJudged) {
  EXPECT_EQ(find_fits(request(GiB)).longest_sequence, 128U);
}

TEST(Fits, AMicroBatchMoreIsPlannedAsAStepOfSoMany) {
  const auto asked = request();
  auto three = asked;
  three.description.micro_batches = 3;
  three.description.tokens = 192;
  for (auto* seconds : {&three.rates.forward, &three.rates.backward, &three.rates.between}) *seconds *= 1.5;
  const auto expected = plan_alone(three.description, three.description.layout(), three.budget, three.rates);
  const auto more = find_fits(asked).a_micro_batch_more;
  EXPECT_TRUE(more.fits);
  EXPECT_DOUBLE_EQ(more.predicted_step_seconds.value(), expected.prediction.step_seconds);
  EXPECT_DOUBLE_EQ(more.tokens_per_second.value(), 192 / expected.prediction.step_seconds);
}

TEST(Fits, WhatIsPlannedAlreadyIsNotPlannedAgain) {
  auto asked = request();
  const auto plan = make_plan(asked.description, asked.description.layout(), asked.budget, asked.rates);
  const auto expected = make_json(find_fits(asked));
  asked.planned = &plan;
  EXPECT_EQ(make_json(find_fits(asked)), expected);
}

TEST(Fits, NothingFitsWhereTheProcessAloneIsTooLarge) {
  const auto told = find_fits(request(4 * MiB));
  EXPECT_EQ(told.longest_sequence, 0U);
  EXPECT_FALSE(told.a_micro_batch_more.fits);
  for (const auto& rate : told.fit_table.tokens_per_second) EXPECT_EQ(rate, 0);
}

TEST(Fits, AStepWithoutTokensIsRefused) {
  auto asked = request();
  asked.batch = 0;
  EXPECT_THROW(static_cast<void>(find_fits(asked)), Error);
}

}  // namespace
}  // namespace spillway::plan
