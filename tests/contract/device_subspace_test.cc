// Matrices that are trained in subspaces and are updated on a device: the bits of plain memory, whatever lives there or
// passes, with pairs that are refitted, steps that are skipped, evaluations, kills, and any other placement before
// and after.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::test::describe;
using plan::test::Shape;
using test::Directory;
using test::DurableRun;
using test::tier;
using test::with_device;

/// Pairs are refitted after every third update, or where the estimate of what they miss is beyond almost nothing.
Shape random_device_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  out.layers = 2;
  out.subspace = std::array{"up|down", "up", "layers\\.0"}[random() % 3];
  out.rank = std::array{32, 64, 12}[random() % 3];
  if (random() % 2 == 0) out.checks.rotate_every = 3;
  out.published = out.checks.rotate_every == 0 && random() % 3 != 0;
  if (random() % 4 == 0) out.frozen = "embed|norm";
  out.format = static_cast<state::StateFormat>(round % 3);
  out.bf16_masters = round % 4 == 1;
  return out;
}

struct Trained {
  Outcome outcome;
  std::vector<double> refits, errors;  ///< of every pair, at the end
};

/// Some gradients are not finite, some steps are followed by evaluations, clipping bites.
Trained train_in_subspaces(const plan::Description& description, Settings settings, bool queued) {
  test::Training training(description, std::move(settings), queued);
  auto& engine = training.engine;
  auto& toy = training.toy;
  Trained out;
  for (std::uint64_t s = 0; s < 9; ++s) {
    toy.poison(s % 5 == 3);
    toy.update.max_grad_norm = s % 2 == 0 ? 1.0 : 0;
    toy.update.learning_rate = 1e-2 / static_cast<double>(s + 1);
    const auto ended = toy.step(s);
    EXPECT_EQ(ended.skipped, s % 5 == 3);
    out.outcome.norms.push_back(ended.skipped ? -1 : ended.grad_norm);
    if (s % 3 == 1) toy.step(1000 + s, false);
    if (s % 4 == 2) engine.flush();
  }
  out.outcome.masters = toy.masters();
  for (const auto& it : engine.refits()) {
    out.refits.push_back(static_cast<double>(it.refits));
    out.errors.push_back(it.error);
  }
  return out;
}

void expect_same(const Trained& expected, const Trained& found, const std::string& what) {
  expect_same(expected.outcome, found.outcome, what);
  EXPECT_EQ(expected.refits, found.refits) << what;
  EXPECT_EQ(expected.errors, found.errors) << what;
}

std::size_t updated_there(const Engine& engine) {
  std::size_t out = 0;
  for (const auto& chunk : engine.layout().chunks()) {
    const bool there = engine.plan().schedule.updated_there(static_cast<plan::Index>(chunk.id));
    out += chunk.reduced.any() && there ? 1 : 0;
  }
  return out;
}

/// SPILLWAY_DEVICE_SEEDS says how many.
TEST(DeviceSubspace, ChangesNoBit) {
  std::mt19937 random(53);
  const char* wanted = std::getenv("SPILLWAY_DEVICE_SEEDS");
  const auto rounds = wanted == nullptr ? spillway::testing::few_or(12, 30) : std::atoi(wanted);
  std::size_t there = 0;
  std::array<int, 2> again = {};
  for (int round = 0; round < rounds; ++round) {
    const auto description = describe(random_device_shape(random, round));
    const bool queued = random() % 3 != 0;
    const auto expected = train_in_subspaces(description, everything_in_dram(), false);
    again[description.refits.rotate_every > 0] += expected.refits.back() > 1 ? 1 : 0;
    const auto third = [&] { return static_cast<double>(random() % 3) / 2; };
    auto settings = with_device(tier(random() % 3 == 0 ? 0.5 : 1), random() % 4 == 0 ? 0 : random());
    if (round % 2 == 1) settings.budget.device = tier(third() / 2, 1 - third() / 2, third());
    const Directory directory;
    if (round % 6 >= 4) {
      settings.storage.places.push_back({directory.path()});
      settings.budget.paths.push_back({.capacity = 1 * GiB});
      settings.budget.durability = random() % 2 == 0 ? plan::Durability::none : plan::Durability::step;
      settings.budget.placement = {third(), third(), third(), third()};
    }
    settings.budget.device->weight = third();
    settings.budget.device->applies_changes = random() % 2 == 0;
    settings.threads = 1 + random() % 3;
    settings.budget.window = random() % 4;
    settings.device.simulated.registers = random() % 4 != 0;
    there += updated_there(Engine(description, settings));
    expect_same(expected, train_in_subspaces(description, settings, queued),
                text("round ", round, queued ? " queued" : ""));
  }
  for (const auto rounds_with : again) EXPECT_GT(rounds_with, rounds / 6) << "moments carried over; begun anew";
  EXPECT_GT(there, static_cast<std::size_t>(rounds));
}

std::size_t taking_changes(const Engine& engine) {
  std::size_t out = 0;
  for (const auto& chunk : engine.layout().chunks()) {
    out += engine.plan().schedule.takes_change(static_cast<plan::Index>(chunk.id)) ? 1 : 0;
  }
  return out;
}

/// Every copy stays, and the host updates all masters.
plan::DeviceTier copies(bool applies_changes) {
  auto out = tier(0);
  out.weight = 1;
  out.applies_changes = applies_changes;
  return out;
}

/// Pairs are refitted, moments carried over and begun anew, some steps are skipped, and evaluations read the copies.
TEST(DeviceSubspace, CopiesThatTakeChangesHaveTheBitsOfTheMasters) {
  std::mt19937 random(61);
  for (int round = 0; round < spillway::testing::few_or(8, 24); ++round) {
    const auto description = describe(random_device_shape(random, round));
    const auto expected = train_in_subspaces(description, everything_in_dram(), false);
    auto settings = with_device(copies(true), random());
    settings.threads = 1 + random() % 3;
    settings.budget.window = random() % 4;
    const Directory directory;
    if (round % 2 == 1) {
      settings.storage.places.push_back({directory.path()});
      settings.budget.paths.push_back({.capacity = 1 * GiB});
      settings.budget.durability = random() % 2 == 0 ? plan::Durability::none : plan::Durability::step;
    }
    EXPECT_GT(taking_changes(Engine(description, settings)), 1U);
    expect_same(expected, train_in_subspaces(description, settings, random() % 2 == 0), text("round ", round));
  }
}

/// A durable run goes on from steps of any placement, before and after.
TEST(DeviceSubspace, CopiesTakeChangesOfStepsThatAreReplayed) {
  std::mt19937 random(67);
  for (int round = 0; round < spillway::testing::few_or(2, 6); ++round) {
    const DurableRun run(random_device_shape(random, round), 18);
    const Directory where;
    SCOPED_TRACE(text("round ", round));
    ASSERT_NO_FATAL_FAILURE(test::expect_each_life_goes_on(run, 7, random, [&](int life) {
      auto out = DurableRun::settings(where.path(), 1 + round % 2, {1, 1, 1, 1});
      if (life % 3 != 2) out.budget.device = copies(life % 2 == 0);
      test::delay_copies(out, random());
      return out;
    }));
  }
}

/// S and the projectors cross the link, and the matrices do not.
class ChangesSent : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Masters, ChangesSent, ::testing::Bool());

TEST_P(ChangesSent, AStepSendsChangesInPlaceOfMatrices) {
  const auto description =
      describe({.layers = 3, .ffn = 192, .tied = false, .subspace = "up|down", .bf16_masters = GetParam()});
  const Engine whole(description, with_device(copies(false), 0)), changes(description, with_device(copies(true), 0));
  ASSERT_EQ(taking_changes(whole), 0U);
  ASSERT_EQ(taking_changes(changes), 6U);
  Bytes matrices = 0, sent = 0;
  for (const auto& chunk : changes.layout().chunks()) {
    if (!chunk.reduced.any()) continue;
    matrices += state::weight_bytes(description.rule(), chunk);
    sent += state::change_bytes(description.rule(), chunk);
  }
  EXPECT_EQ(whole.plan().to_device_per_step - changes.plan().to_device_per_step, matrices - sent);
}

/// Steps of which some are updated there and some on the host go on from each other's, as after kills.
TEST(DeviceSubspace, ADurableRunGoesOnWithAnyOtherPlacement) {
  constexpr std::uint64_t kSteps = 18;
  std::mt19937 random(7);
  for (int round = 0; round < spillway::testing::few_or(3, 6); ++round) {
    const DurableRun run(random_device_shape(random, round), kSteps);
    SCOPED_TRACE(text("round ", round));
    ASSERT_NO_FATAL_FAILURE(test::expect_lives_with_a_device(run, 1 + round % 2, 7, random));
  }
}

/// Neither weights nor S cross the link: what a step moves does not grow with the matrices.
TEST(DeviceSubspace, OfMatricesThatLiveThereNothingCrossesTheLink) {
  const auto moved = [](double state, std::int64_t ffn) {
    const auto description = describe({.layers = 3, .ffn = ffn, .tied = false, .subspace = "up|down"});
    const Engine engine(description, with_device(tier(state), 0));
    EXPECT_EQ(updated_there(engine), state > 0 ? 6U : 0U);
    return std::pair(engine.plan().to_device_per_step, engine.plan().from_device_per_step);
  };
  EXPECT_EQ(moved(1, 96), moved(1, 192));
  EXPECT_GT(moved(0, 192).first, moved(0, 96).first);
  EXPECT_GT(moved(0, 96).second, moved(1, 96).second);
}

}  // namespace
}  // namespace spillway
