// Features that the first layer leaves to its backward pass come back as they were, from memory, from a path, and from
// where layers compute.
#include <gtest/gtest.h>

#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/on_device.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

/// The toy's features are its input, as fp32.
plan::Description with_features(plan::Description description) {
  description.feature_bytes = description.tokens * description.hidden_size * sizeof(float);
  return description;
}

/// `on_path`: of the features.
Outcome train_with(const plan::Description& description, Settings settings, bool on_path) {
  test::Training training(description, std::move(settings), false);
  if (plan::has_features(description, training.engine.layout())) {
    EXPECT_EQ(training.engine.plan().placement.features.in_memory(), !on_path);
  }
  return test::train_with_pauses(training);
}

TEST(Features, ComeBackAsTheyWere) {
  std::mt19937 random(31);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(6, 24); ++round) {
    auto shape = plan::test::random_shape(random, round);
    if (round % 3 == 2) plan::test::freeze_some(shape, random);
    const auto plain = plan::test::describe(shape), description = with_features(plain);
    const auto expected = train_with(plain, everything_in_dram(), false);
    expect_same(expected, train_with(description, everything_in_dram(), false), text("round ", round));
    for (const bool durable : {false, true}) {
      const test::Directory directory;
      Settings settings;
      settings.storage.places.push_back({directory.path()});
      settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
      settings.budget.dram = 2 * GiB;
      settings.budget.placement = {share(random), share(random), share(random), 0};
      settings.budget.durability = durable ? plan::Durability::step : plan::Durability::none;
      expect_same(expected, train_with(description, settings, true),
                  text("round ", round, durable ? ", durable" : ", on a path"));
    }
    auto aside = everything_in_dram();
    test::use_fake_nodes(aside, {4e8, 1e8});
    aside.budget.placement.activation_on = 1;
    expect_same(expected, train_with(description, aside, false), text("round ", round, ", on another tier"));
  }
}

TEST(Features, LeaveADeviceAndComeBackAsTheyWere) {
  std::mt19937 random(33);
  for (int round = 0; round < spillway::testing::few_or(4, 16); ++round) {
    const auto plain = plan::test::describe(plan::test::random_shape(random, round));
    const auto expected = train_with(plain, everything_in_dram(), false);
    for (const bool on_path : {false, true}) {
      const test::Directory directory;
      auto settings = test::with_device(test::tier(static_cast<double>(random() % 3) / 2), random());
      if (on_path) settings.storage.places.push_back({directory.path()});
      if (on_path) settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
      if (on_path) settings.budget.placement = {0.5, 0.5, 0.5, 0};
      expect_same(expected, train_with(with_features(plain), settings, on_path),
                  text("round ", round, on_path ? ", on a path" : ""));
    }
  }
}

}  // namespace
}  // namespace spillway
