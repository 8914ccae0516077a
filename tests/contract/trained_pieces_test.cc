// Weights that are trained and come when passes ask for their pieces: no bit depends on where they lie, and what no
// pass asks for is not moved for passes.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using state::ComputeType;

plan::test::Shape random_shape_of_trained_pieces(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  out.experts = 2 + static_cast<std::int64_t>(random() % 4);
  out.trains_experts = true;
  if (random() % 4 > 0) out.asked = 0.5;
  out.uneven = out.asked < 1 && random() % 2 == 0;
  if (random() % 3 == 0) out.frozen = "up|embed";
  if (random() % 3 == 0) out.fp32 = "norm";
  if (random() % 3 == 0) out.compute = ComputeType::fp32;
  if (random() % 4 == 0) out.type = ComputeType::fp32;
  constexpr std::array<const optim::Descriptor*, 3> kOptimizers{&optim::adamw, &optim::muon, &optim::lion};
  out.optimizer = kOptimizers[random() % kOptimizers.size()];
  if (out.optimizer == &optim::adamw) out.format = static_cast<state::StateFormat>(round % 3);
  return out;
}

class TrainedPieces : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, TrainedPieces, test::kEveryDurability, test::durability_name);

TEST_P(TrainedPieces, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(83, spillway::testing::few_or(4, 12), 10, GetParam(),
                                   random_shape_of_trained_pieces);
}

Outcome run(const plan::Description& description, Settings settings, bool queued) {
  test::Training training(description, std::move(settings), queued);
  Outcome out;
  for (std::uint64_t s = 0; s < 6; ++s) out.norms.push_back(training.toy.step(s).grad_norm);
  out.masters = training.toy.masters();
  return out;
}

TEST(TrainedPiecesOnADevice, ChangeNoBit) {
  std::mt19937 random(89);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(8, 24); ++round) {
    const auto description = describe(random_shape_of_trained_pieces(random, round));
    const auto expected = run(description, everything_in_dram(), false);
    for (int placement = 0; placement < 3; ++placement) {
      auto settings = test::with_device({.capacity = 1 * GiB}, random());
      settings.budget.device->coalesce_to = random() % (48 * KiB);
      if (placement == 1) settings.budget.device->weight = share(random);
      if (placement == 2) settings.budget.device->state = settings.budget.device->device_updated = 0;
      const bool queued = random() % 2 == 0;
      expect_same(expected, run(description, settings, queued), text("round ", round, " with ", placement));
    }
  }
}

/// Two layers of twenty trained experts each, and no tables.
plan::Description describe_experts(double asked) {
  return describe({.layers = 2,
                   .embedding = false,
                   .head = false,
                   .micro_batches = 1,
                   .experts = 20,
                   .trains_experts = true,
                   .asked = asked});
}

/// To the device and from it, in four steps with all updates on the host.
std::pair<Bytes, Bytes> count_link_bytes(double asked) {
  const auto description = describe_experts(asked);
  auto settings = test::with_device({.capacity = 1 * GiB}, 1);
  auto& device = *settings.budget.device;
  device.weight = device.state = device.device_updated = 0;
  device.coalesce_to = 4 * KiB;
  test::Training training(description, settings, false);
  training.toy.step(0);
  const auto count = [&] { return training.engine.counters().device.value(); };
  const auto before = count();
  for (std::uint64_t s = 1; s < 5; ++s) training.toy.step(s);
  return {count().to_device - before.to_device, count().from_device - before.from_device};
}

TEST(TrainedPiecesOnADevice, AloneCrossTheLinkWhereAPassAsksForThem) {
  const auto half = count_link_bytes(0.5), whole = count_link_bytes(1);
  EXPECT_LT(half.first, whole.first * 3 / 4);
  EXPECT_LT(half.second, whole.second * 3 / 4);
}

enum class Pauses : std::uint8_t { none, in_each_step, random };

/// Twelve steps, each with a learning rate of its own and some without an update. Pauses are evaluations, updates that
/// end, reads of all masters, and steps that are computed twice.
Outcome train_with(const plan::Description& description, const Settings& settings, Pauses pauses, unsigned seed) {
  test::Training training(description, settings, settings.budget.device.has_value());
  auto& toy = training.toy;
  std::mt19937 random(seed);
  Outcome out;
  for (std::uint64_t s = 0; s < 12; ++s) {
    toy.update.learning_rate = 1e-2 / static_cast<double>(s + 1);
    toy.poison(s % 5 == 3);
    const auto pause = pauses == Pauses::random ? random() % 10 : 10;
    if (pause < 2) {
      toy.compute_step(s, true);
      training.engine.abandon_step();
    }
    out.norms.push_back(toy.step(s).skipped ? 0 : 1);
    if (pauses == Pauses::in_each_step || pause == 2) toy.masters();
    if (pause == 3) training.engine.flush();
    if (pause == 4) toy.step(1000 + s, false);
  }
  out.masters = toy.masters();
  return out;
}

TEST(WaitingUpdates, ChangeNoBitWhereverTheyWaitAndHoweverOftenTheyAreMadeUpFor) {
  std::mt19937 random(97);
  for (int round = 0; round < spillway::testing::few_or(10, 40); ++round) {
    const auto description = describe(random_shape_of_trained_pieces(random, round));
    const auto expected = train_with(description, everything_in_dram(), Pauses::in_each_step, 0);
    for (int place = 0; place < 4; ++place) {
      const test::Directory where;
      auto settings = place == 0 ? everything_in_dram()
                                 : test::DurableRun::settings(where.path(), 1 + random() % 2,
                                                              test::random_placement(random), Durability::none);
      if (place == 3) {
        settings.budget.device = test::tier(0);
        test::delay_copies(settings, random());
      }
      settings.threads = 1 + random() % 3;
      const auto found = train_with(description, settings, place == 2 ? Pauses::none : Pauses::random, random());
      expect_same(expected, found, text("round ", round, " at place ", place));
    }
  }
}

struct Work {
  Bytes read = 0, written = 0;
  std::uint64_t updated = 0;  ///< elements
};

/// Work of sixteen steps on a path.
Work count_work(double asked, Durability durability) {
  const auto description = describe_experts(asked);
  const test::Directory where;
  const auto settings = test::DurableRun::settings(where.path(), 1, {0, 0, 0, 0}, durability);
  test::Training training(description, settings, false);
  const auto count = [&] {
    const auto counters = training.engine.counters();
    const auto& path = counters.paths.begin()->second;
    return Work{path.read, path.written, counters.updates.begin()->second.elements};
  };
  training.toy.step(0);
  const auto before = count();
  for (std::uint64_t s = 1; s < 17; ++s) training.toy.step(s);
  const auto after = count();
  return {after.read - before.read, after.written - before.written, after.updated - before.updated};
}

TEST(WaitingUpdates, NeitherReadNorWriteNorCompute) {
  for (const auto durability : {Durability::none, Durability::checkpoint}) {
    const auto half = count_work(0.5, durability), whole = count_work(1, durability);
    EXPECT_LT(half.read, whole.read * 85 / 100);
    EXPECT_LT(half.written, whole.written * 85 / 100);
    EXPECT_LT(half.updated, whole.updated * 85 / 100);
  }
}

TEST(WaitingUpdates, DurableStepsUpdateAllChunks) {
  const auto half = count_work(0.5, Durability::step), whole = count_work(1, Durability::step);
  EXPECT_LT(half.read, whole.read);
  EXPECT_EQ(half.updated, whole.updated);
}

}  // namespace
}  // namespace spillway
