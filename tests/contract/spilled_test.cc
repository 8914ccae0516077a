// What a layer leaves to its backward pass by way of a path or of another tier comes back as it was, wherever all else
// lies and passes compute.
#include <gtest/gtest.h>

#include <random>

#include "spillway/plan/saved_activations.h"
#include "tests/contract/directory.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/on_device.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

/// What the toy saves of each layer: its input, as fp32. All layers that have a backward pass are asked for it.
plan::SavedActivations saved_of(const plan::Description& description, plan::Spill spill) {
  plan::SavedActivations out{.token_bytes = 5.0 * static_cast<double>(description.hidden_size),
                             .spill = spill,
                             .spilled_token_bytes = 4.0 * static_cast<double>(description.hidden_size),
                             .graph_token_bytes = 1};
  for (std::uint32_t b = 0; b < description.blocks.size(); ++b) {
    if (description.blocks[b].role == state::BlockRole::layer) out.blocks.push_back(b);
  }
  out.layers = out.blocks.size();
  out.keep = out.layers;
  return out;
}

/// `queued`: as test::Training's.
Outcome train_spilled(const plan::Description& description, Settings settings, std::size_t expected,
                      bool queued = false) {
  test::Training training(description, std::move(settings), queued);
  EXPECT_EQ(training.engine.plan().spilling.size(), expected);
  return test::train_with_pauses(training);
}

TEST(Spilled, ComesBackAsItWas) {
  std::mt19937 random(21);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(6, 24); ++round) {
    auto shape = plan::test::random_shape(random, round);
    if (round % 3 == 2) plan::test::freeze_some(shape, random);
    const auto description = plan::test::describe(shape);
    const auto layout = description.layout();
    const auto expected = train_spilled(description, everything_in_dram(), 0);
    for (const bool durable : {false, true}) {
      const test::Directory directory;
      Settings settings;
      settings.storage.places.push_back({directory.path()});
      settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
      settings.budget.dram = 2 * GiB;
      settings.budget.window = random() % 4;
      settings.budget.placement = {share(random), share(random), share(random), share(random)};
      settings.budget.durability = durable ? plan::Durability::step : plan::Durability::none;
      settings.budget.saved_activations = saved_of(description, plan::Spill::all);
      const auto layers = plan::most_keeping(layout, settings.budget.saved_activations);
      const auto found = train_spilled(description, settings, layers);
      expect_same(expected, found, text("round ", round, durable ? ", durable" : ""));
    }
    auto aside = everything_in_dram();
    test::use_fake_nodes(aside, {4e8, 1e8});
    aside.budget.saved_activations = saved_of(description, plan::Spill::all);
    const auto all = plan::most_keeping(layout, aside.budget.saved_activations);
    expect_same(expected, train_spilled(description, aside, all), text("round ", round, ", on another tier"));
    auto kept = everything_in_dram();
    kept.budget.saved_activations = saved_of(description, plan::Spill::never);
    expect_same(expected, train_spilled(description, kept, 0), text("round ", round, ", kept"));
  }
}

TEST(Spilled, LeavesADeviceAndComesBackAsItWas) {
  std::mt19937 random(23);
  for (int round = 0; round < spillway::testing::few_or(4, 16); ++round) {
    const auto description = plan::test::describe(plan::test::random_shape(random, round));
    const auto expected = train_spilled(description, everything_in_dram(), 0);
    const auto saved = saved_of(description, plan::Spill::all);
    const auto layers = plan::most_keeping(description.layout(), saved);
    for (const bool on_path : {false, true}) {
      const test::Directory directory;
      auto settings = test::with_device(test::tier(static_cast<double>(random() % 3) / 2), random());
      settings.budget.saved_activations = saved;
      if (on_path) settings.storage.places.push_back({directory.path()});
      if (on_path) settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
      if (on_path) settings.budget.placement = {0.5, 0.5, 0.5, 0.5};
      if (!on_path) test::use_fake_nodes(settings, {4e8, 1e8});
      if (!on_path) settings.budget.placement.grad_on = settings.budget.placement.activation_on = 1;
      const bool queued = random() % 2 == 0;
      expect_same(expected, train_spilled(description, settings, layers, queued),
                  text("round ", round, on_path ? ", on a path" : "", queued ? ", queued" : ""));
    }
  }
}

TEST(Spilled, LeavesADeviceForALaterTierAndComesBackAsItWas) {
  std::mt19937 random(29);
  for (int round = 0; round < spillway::testing::few_or(2, 8); ++round) {
    const auto description = plan::test::describe(plan::test::random_shape(random, round));
    const auto saved = saved_of(description, plan::Spill::all);
    const auto layers = plan::most_keeping(description.layout(), saved);
    auto settings = test::with_device(test::tier(0), random());
    test::use_fake_nodes(settings, {4e8, 1e8});
    settings.budget.placement.grad_on = settings.budget.placement.activation_on = 0;
    settings.budget.saved_activations = saved;
    for (const std::uint16_t home : {0, 1}) {
      for (std::uint16_t tier = 0; tier < 2; ++tier) {
        auto& rates = settings.rates.nodes[tier];
        rates.to_device = rates.from_device = tier == home ? 1e9 : 1e6;
      }
      test::Training training(description, settings, false);
      const auto& plan = training.engine.plan();
      ASSERT_EQ(plan.spilling.size(), layers);
      EXPECT_EQ(plan.decisions.layers.home, (plan::TierId{plan::TierKind::host, home})) << "the link to it is faster";
      expect_same(train_spilled(description, everything_in_dram(), 0), test::train_with_pauses(training),
                  text("round ", round, ", home ", home));
    }
  }
}

}  // namespace
}  // namespace spillway
