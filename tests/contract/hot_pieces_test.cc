// Experts that swap places within a run: fewer bytes, the bits of experts that stay, and a volume that goes on.
#include "spillway/execute/hot_pieces.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "spillway/engine_testing.h"
#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"
#include "tests/contract/outcome.h"
#include "tests/contract/slow_ring.h"

namespace spillway {
namespace {

using plan::Durability;
using test::Directory;
using test::DurableRun;

constexpr std::uint64_t kHotSteps = 24;

struct Measured {
  Outcome outcome;
  Bytes read = 0;
  std::uint64_t resident = 0, planned = 0, swaps = 0;
};

/// Two layers of adapters and twenty experts, of which half have room in memory.
class HotExperts : public ::testing::TestWithParam<Durability> {
 protected:
  static plan::Description describe() {
    return plan::test::describe(
        {.layers = 2, .embedding = false, .head = false, .micro_batches = 1, .experts = 20, .asked = 0.5});
  }
  [[nodiscard]] Settings settings(std::uint64_t period, const plan::PlacementShares& placement = {0.5, 1, 1, 1},
                                  std::size_t paths = 1) const {
    auto out = DurableRun::settings(where_.path(), paths, placement, GetParam());
    out.budget.checkpoints = 1;
    out.piece_period = period;
    out.storage.overwrite = true;
    return out;
  }

  /// The tokens of the first half of the steps go to other experts than those of the second half.
  static std::uint64_t seed_of(std::uint64_t step) { return step < kHotSteps / 2 ? 1 : 2; }

  [[nodiscard]] static Measured train(test::Training& training) {
    auto& engine = training.engine;
    const auto read = [&] { return engine.counters().paths.at("path:0").read; };
    Measured out;
    for (std::uint64_t s = 0; s < kHotSteps; ++s) {
      const auto before = read();
      out.outcome.norms.push_back(training.toy.step(seed_of(s)).grad_norm);
      engine.commit(text("step ", s + 1));
      out.read += read() - before;
    }
    const auto counted = engine.counters().pieces.value();
    for (const auto& layer : counted) {
      out.resident += layer.resident;
      out.planned += layer.planned;
      out.swaps += layer.swaps;
    }
    out.outcome.masters = training.toy.masters();
    return out;
  }
  [[nodiscard]] static Measured train(Settings settings) {
    test::Training training(description_, std::move(settings), false);
    return train(training);
  }

  static inline const plan::Description description_ = describe();
  const Directory where_;
};

INSTANTIATE_TEST_SUITE_P(Levels, HotExperts, test::kEveryDurability, test::durability_name);

TEST_P(HotExperts, AreReadLessOftenThanThoseOfThePlan) {
  const auto still = train(settings(0)), moving = train(settings(2));
  expect_same(still.outcome, moving.outcome, "swaps change no bit");
  EXPECT_EQ(still.swaps, 0U);
  EXPECT_EQ(still.resident, still.planned);
  EXPECT_EQ(moving.planned, still.planned) << "the same steps";
  EXPECT_GT(moving.swaps, 0U);
  EXPECT_GT(moving.resident, moving.planned);
  EXPECT_LT(moving.read, still.read * 3 / 4);
}

TEST_P(HotExperts, ChangeNoBitWithCopiesOnADevice) {
  const auto expected = train(settings(0));
  for (const double share : {0.0, 0.3, 0.8}) {
    for (const double weight : {0.0, 0.5, 0.9}) {
      auto now = settings(2, {weight, 1, 1, 1});
      now.budget.device = {.capacity = 1 * GiB, .weight = share, .activation = 0};
      test::delay_copies(now, 5);
      const auto found = train(now);
      expect_same(expected.outcome, found.outcome, text("copies of ", share, ", in memory ", weight));
      EXPECT_EQ(found.swaps > 0, share > 0 || weight > 0) << share << " " << weight;
    }
  }
}

/// Transfers of swaps are under way while later steps end, updates and checkpoints with them.
TEST_P(HotExperts, ChangeNoBitOnASlowDriveWithTheLeastRoom) {
  const auto expected = train(settings(0));
  auto now = settings(1);
  auto& capacity = now.budget.paths.front().capacity;
  Bytes refused = 1 * MiB;
  while (capacity > refused + 1 * MiB) {  // the least that is not refused
    const auto kept = capacity;
    capacity = round_up((refused + kept) / 2, 1 * MiB);
    try {
      (void)Engine(description_, now);  // plans
    } catch (const Error&) {
      refused = std::exchange(capacity, kept);
    }
  }
  use_ring(now, [](const sys::File& file, unsigned depth) {
    return std::make_unique<test::SlowRing>(sys::make_ring(file, depth));
  });
  const auto found = train(now);
  expect_same(expected.outcome, found.outcome, human(capacity));
  EXPECT_GT(found.swaps, 0U);
}

/// Steps end while the reads of swaps do not begin. With the reads the places change.
TEST_P(HotExperts, KeepNoStepWaiting) {
  const auto count_swaps = [](Engine& engine) {
    const auto counted = engine.counters().pieces.value();
    std::uint64_t out = 0;
    for (const auto& layer : counted) out += layer.swaps;
    return out;
  };
  const auto held = std::make_shared<std::atomic<bool>>(true);
  auto now = settings(2);
  use_ring(now, [held](const sys::File& file, unsigned depth) {
    return std::make_unique<test::HoldingRing>(sys::make_ring(file, depth), held);
  });
  std::vector<float> masters;
  {
    test::Training training(description_, now, false);
    for (int step = 0; step < 8; ++step) training.toy.step(1);
    EXPECT_EQ(count_swaps(training.engine), 0U);
    *held = false;
    for (int step = 0; step < 4; ++step) training.toy.step(1);
    masters = training.toy.masters();  // waits for swaps
    EXPECT_GT(count_swaps(training.engine), 0U);
  }
  test::Training still(description_, settings(0), false);
  for (int step = 0; step < 12; ++step) still.toy.step(1);
  EXPECT_EQ(still.toy.masters(), masters);
}

TEST_P(HotExperts, LeaveAVolumeThatGoesOn) {
  const auto expected = train(settings(0));
  const auto checkpoint = where_.path() / "checkpoint";
  std::filesystem::create_directory(checkpoint);
  auto now = settings(2, {0.5, 1, 1, 0}, 2);  // volumes of two paths have room for what memory keeps
  {
    test::Training training(description_, now, false);
    const auto counts = train(training);
    EXPECT_GT(counts.swaps, 0U);
    if (GetParam() == Durability::none) {
      const auto manifest = training.engine.leave("");
      std::ofstream(checkpoint / "manifest.bin", std::ios::binary)
          .write(reinterpret_cast<const char*>(manifest.data()), static_cast<std::streamsize>(manifest.size()));
    } else {
      training.engine.save_manifest(checkpoint);
    }
    training.engine.close();
  }
  now.storage.overwrite = false;
  if (GetParam() != Durability::none) {
    EXPECT_TRUE(Engine(description_, now).verify({checkpoint}).damage.empty());
  }
  Engine again(description_, now);
  again.read_back(checkpoint);
  Outcome found{.masters = test::Toy(again, description_, 1).masters(), .norms = expected.outcome.norms};
  expect_same(expected.outcome, found, "read back");
}

TEST_P(HotExperts, GoOnAfterAnAbandonedStepAndAnEvaluation) {
  const auto run = [&](std::uint64_t period) {
    test::Training training(description_, settings(period), false);
    Outcome out;
    for (std::uint64_t s = 0; s < 8; ++s) {
      if (s % 3 == 0) training.toy.step(7 + s, false);
      if (s % 3 == 1) {
        training.toy.compute_step(1, true);
        training.engine.abandon_step();
      }
      out.norms.push_back(training.toy.step(1 + s / 4).grad_norm);
    }
    out.masters = training.toy.masters();
    return out;
  };
  expect_same(run(0), run(1), "with evaluations and abandoned steps");
}

}  // namespace
}  // namespace spillway
