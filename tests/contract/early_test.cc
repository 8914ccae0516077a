// Updates during backward never change a bit of the result: whatever was predicted, and whatever became of it.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::test::describe;
using plan::test::Shape;
using test::Directory;

struct EarlyOutcome : Outcome {
  std::vector<double> clips;
  std::vector<bool> skipped;
  std::size_t early = 0, undone = 0;
};

/// Steps of falling rate, of which some clip, some are not finite, some begin with a wrong prediction and some with
/// none.
EarlyOutcome train_early(const plan::Description& description, Settings settings, bool clipping, bool pause) {
  settings.budget.clipping = clipping;
  Engine engine(description, std::move(settings));
  engine.start();
  test::Toy toy(engine, description, description.micro_batches);
  toy.fill();
  EarlyOutcome out;
  for (int s = 0; s < 20; ++s) {
    toy.update.learning_rate = 1e-2 / (1 + s);
    toy.update.max_grad_norm = !clipping ? 0 : s == 5 || s == 13 ? 1e-3 : 1e9;
    toy.expected = toy.update;
    if (s % 7 == 3) toy.expected->learning_rate *= 2;
    if (s % 7 == 0) toy.expected.reset();
    const bool poisoned = s == 9 || s == 15;
    toy.poison(poisoned);
    const auto result = toy.step(static_cast<std::uint64_t>(s));
    out.norms.push_back(poisoned ? 0 : result.grad_norm);
    out.clips.push_back(poisoned ? 0 : result.clip);
    out.skipped.push_back(result.skipped);
    out.early += result.early;
    out.undone += result.undone;
    if (pause && s % 3 == 1) engine.flush();
    if (pause && s % 4 == 2) toy.step(1000 + static_cast<std::uint64_t>(s), false);
  }
  out.masters = toy.masters();
  return out;
}

Settings settings_of(plan::Updates updates) {
  auto out = everything_in_dram();
  out.budget.update_schedule = updates;
  out.budget.speculative_updates = true;
  return out;
}

void expect_same(const EarlyOutcome& expected, const EarlyOutcome& found, const std::string& what) {
  expect_same(static_cast<const Outcome&>(expected), found, what);
  ASSERT_EQ(expected.clips, found.clips) << what;
  ASSERT_EQ(expected.skipped, found.skipped) << what;
}

/// By clipping or not.
class EarlyUpdates : public ::testing::TestWithParam<bool> {};

TEST_P(EarlyUpdates, ChangeNoBit) {
  std::mt19937 random(23);
  std::uniform_real_distribution<> share(0, 1);
  std::size_t early = 0, undone = 0;
  for (int round = 0; round < spillway::testing::few_or(5, 10); ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    const auto expected = train_early(description, settings_of(plan::Updates::deferred), GetParam(), false);
    ASSERT_EQ(expected.early, 0U);
    ASSERT_EQ(std::count(expected.skipped.begin(), expected.skipped.end(), true), 2);
    for (int placement = 0; placement < 4; ++placement) {
      auto settings = settings_of(plan::Updates::early);
      settings.threads = 1 + random() % 3;
      const std::array<Directory, 2> directories;
      for (std::size_t p = 0; p < directories.size() && placement > 0; ++p) {
        settings.storage.places.push_back({directories[p].path()});
        settings.budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
      }
      if (placement == 1) settings.budget.placement = {1, 1, 0, 1};  // gradients wait on the path
      if (placement > 1) settings.budget.placement = {share(random), share(random), share(random), share(random)};
      test::use_fake_nodes(settings, random);
      const auto found = train_early(description, settings, GetParam(), placement == 2);
      expect_same(expected, found, text("round ", round, " placement ", placement));
      early += found.early;
      undone += found.undone;
    }
  }
  EXPECT_GT(undone, 0U) << "nothing was put back: the test has shown nothing";
  EXPECT_GT(early, undone) << "nothing was kept: the test has shown nothing";
}

INSTANTIATE_TEST_SUITE_P(Norm, EarlyUpdates, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Clipped" : "Unclipped"; });

TEST(EarlyUpdatesPlan, AsManyAsOldVersionsFitAreEarly) {
  const auto description = describe({.layers = 6, .tokens = 32});
  auto settings = settings_of(plan::Updates::early);
  const auto deferred = Engine(description, settings_of(plan::Updates::deferred)).plan();
  EXPECT_EQ(deferred.early_chunks, 0U);
  std::size_t before = ~std::size_t{0};
  bool some = false;
  const auto whole = Engine(description, settings).plan();
  EXPECT_GT(whole.early_chunks, 0U);
  for (auto dram = whole.dram_peak; dram >= deferred.dram_peak; dram -= 64 * KiB) {
    settings.budget.dram = dram;
    const auto plan = Engine(description, settings).plan();
    EXPECT_LE(plan.dram_peak, dram);
    EXPECT_LE(plan.early_chunks, before);
    some = some || (plan.early_chunks > 0 && plan.early_chunks < whole.early_chunks);
    before = plan.early_chunks;
  }
  EXPECT_TRUE(some) << "a smaller budget never meant fewer early chunks";
}

TEST(EarlyUpdatesPlan, ClippingWithoutSpeculationIsRefusedByName) {
  auto settings = settings_of(plan::Updates::early);
  settings.budget.speculative_updates = false;
  try {
    const Engine engine(describe({}), settings);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    const std::string message = error.what();
    for (const auto* word : {"--speculative_updates", "--max_grad_norm 0", "--update_schedule deferred"}) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }
  settings.budget.clipping = false;
  EXPECT_GT(Engine(describe({}), settings).plan().early_chunks, 0U);
}

TEST(EarlyUpdatesPlan, AStepThatClipsAlthoughThePlanSaysNoneIsUpdatedBehind) {
  const auto description = describe({.layers = 2, .tokens = 32});
  auto settings = settings_of(plan::Updates::early);
  settings.budget.clipping = settings.budget.speculative_updates = false;
  Engine engine(description, settings);
  engine.start();
  test::Toy toy(engine, description, description.micro_batches);
  toy.fill();
  toy.expected = toy.update;
  for (std::uint64_t s = 0; s < 8; ++s) EXPECT_EQ(toy.step(s).early, 0U);
}

}  // namespace
}  // namespace spillway
