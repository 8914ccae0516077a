// Placement, budget and window never change a bit of the result.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <span>

#include "tests/contract/directory.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::test::describe;
using plan::test::Shape;

using test::Directory;

Outcome train_placed(const plan::Description& description, Settings settings, int steps, bool pause) {
  Engine engine(description, std::move(settings));
  engine.start();
  test::Toy toy(engine, description, description.micro_batches);
  toy.fill();
  Outcome out;
  for (int s = 0; s < steps; ++s) {
    out.norms.push_back(toy.step(static_cast<std::uint64_t>(s)).grad_norm);
    if (pause && s % 3 == 1) engine.flush();
    if (pause && s % 3 == 2) toy.step(1000 + static_cast<std::uint64_t>(s), false);
  }
  out.masters = toy.masters();
  return out;
}

/// The first `count` of them, each large enough for everything.
void add_paths(Settings& settings, std::span<const Directory> directories, std::size_t count) {
  for (std::size_t p = 0; p < count; ++p) {
    settings.storage.places.push_back({directories[p].path()});
    settings.budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
  }
}

TEST(Placement, ChangesNoBit) {
  std::mt19937 random(11);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(4, 24); ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    const auto expected = train_placed(description, everything_in_dram(), 6, false);
    for (int placement = 0; placement < 3; ++placement) {
      const std::array<Directory, 3> directories;
      Settings settings;
      add_paths(settings, directories, 1 + random() % 3);
      settings.threads = 1 + random() % 3;
      settings.budget.dram = 2 * GiB;
      settings.budget.window = random() % 4;
      auto& where = settings.budget.placement;
      const auto pick = [&]() -> double { return placement == 0 ? 0 : share(random); };
      where = {pick(), pick(), pick(), pick()};
      const auto found = train_placed(description, settings, 6, placement == 2);
      expect_same(expected, found, "round " + std::to_string(round) + " placement " + std::to_string(placement));
    }
  }
}

TEST(Placement, WithVirtualRanksChangesNoBit) {
  std::mt19937 random(17);
  int others = 0;  // runs that one rank gives other bits
  for (int round = 0; round < spillway::testing::few_or(4, 16); ++round) {
    auto shape = plan::test::random_shape(random, round);
    shape.virtual_ranks = 2 + random() % 4;
    shape.micro_batches = 2 * shape.virtual_ranks + random() % 3;
    shape.fp32 = round % 2 == 1 ? "norm" : "";
    const auto description = describe(shape);
    const auto expected = train_placed(description, everything_in_dram(), 4, false);
    const std::array<Directory, 2> directories;
    Settings settings;
    add_paths(settings, directories, 2);
    settings.threads = 1 + random() % 3;
    settings.budget.dram = 2 * GiB;
    settings.budget.placement = {0.5, 0, 0.5, 0};
    const auto what = text("round ", round, ", ", shape.virtual_ranks, " ranks, ", shape.micro_batches);
    expect_same(expected, train_placed(description, settings, 4, round % 2 == 0), what);
    shape.virtual_ranks = 1;
    others += train_placed(describe(shape), everything_in_dram(), 4, false).masters == expected.masters ? 0 : 1;
  }
  EXPECT_GT(others, 0);
}

TEST(Placement, ATightBudgetChangesNoBit) {
  const auto description = describe({.layers = 4, .tokens = 32});
  const auto expected = train_placed(description, everything_in_dram(), 5, false);
  const Directory directory;
  Settings settings;
  add_paths(settings, {&directory, 1}, 1);
  settings.budget.dram = plan::kEngineBytes;
  int fitted = 0;
  for (; fitted < 3 && settings.budget.dram < 200 * MiB; settings.budget.dram += 64 * KiB) {
    try {
      expect_same(expected, train_placed(description, settings, 5, false), text("budget ", settings.budget.dram));
      ++fitted;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::does_not_fit) << error.what();
    }
  }
  EXPECT_EQ(fitted, 3);
}

TEST(Placement, ARefusalNamesWhatWouldFitAndThatFits) {
  const auto description = describe({.layers = 4, .tokens = 32});
  Settings settings;
  settings.budget.dram = plan::kEngineBytes + MiB;
  try {
    const Engine engine(description, settings);
    FAIL() << "fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string message = error.what();
    const auto at = message.find("--dram_budget ");
    ASSERT_NE(at, std::string::npos) << message;
    settings.budget.dram = std::stoull(message.substr(at + 14)) * MiB;
  }
  const Engine engine(description, settings);
  EXPECT_LE(engine.plan().dram_peak, settings.budget.dram);
}

}  // namespace
}  // namespace spillway
