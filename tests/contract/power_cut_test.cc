// The power goes while a run works: at any event of its drives, with any subset of what no flush had covered. What is
// left is a step that had ended, bit by bit, and the run goes on from there as if nothing had happened.
#include "spillway/sys/power_cut.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>

#include "spillway/engine_testing.h"
#include "spillway/storage/volume.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::test::Shape;
using test::Directory;
using test::DurableRun;

/// What a life of a run has come to.
struct Life {
  std::uint64_t durable = 0;  ///< the last step that it was told is durable
  std::uint64_t events = 0;
  bool ended = false;  ///< all steps done
};

class PowerCut : public ::testing::Test {
 protected:
  void model(const Shape& shape, const plan::PlacementShares& placement, std::size_t paths) {
    run_.emplace(shape, 10);
    placement_ = placement;
    paths_ = paths;
  }

  [[nodiscard]] Settings settings(const Directory& where) const {
    auto out = DurableRun::settings(where.path(), paths_, placement_);
    if (resident_ || updated_) {
      out.budget.device =
          plan::DeviceTier{.capacity = 1 * GiB, .state = resident_, .device_updated = updated_, .grad = 0.5};
      out.device.simulated.memory = 1 * GiB;
    }
    return out;
  }

  /// Starts or goes on, to the last step or until the power goes after so many events.
  Life live(const Settings& plain, bool first, const std::shared_ptr<sys::PowerCut>& power, std::uint64_t floor) {
    auto now = plain;
    use_ring(now, sys::power_cut(sys::make_thread_ring, power));
    Life out{.durable = floor};
    try {
      Engine engine(run_->description(), now);
      const auto found = engine.start({.reopen = !first});
      if (found.has_step) {
        EXPECT_GE(found.step, floor);
        EXPECT_TRUE(run_->holds(engine, found.step));
      } else {
        run_->fill(engine);
      }
      run_->train(engine, found.step + 1, run_->steps(), [&](std::uint64_t step) {
        out.durable = std::max(out.durable, step - 1);  // commit() waits for the one before
      });
      engine.flush();
      out.durable = run_->steps();
      EXPECT_TRUE(run_->holds(engine, run_->steps()));
      engine.close();
      out.ended = true;
    } catch (const Error& error) {
      EXPECT_TRUE(power->is_cut()) << error.what();
    }
    out.events = power->events();
    return out;
  }

  /// The volumes as the cut left them, in another place.
  void leave(const Settings& from, const Settings& to, const sys::PowerCut& power, std::uint64_t seed) const {
    for (std::size_t p = 0; p < paths_; ++p) {
      power.image(from.storage.places[p].path / storage::kVolumeName, seed)
          .save(to.storage.places[p].path / storage::kVolumeName);
    }
  }

  /// Cuts a run after so many events, then the run that goes on after that, and lets the third end.
  void cut(std::uint64_t events, std::mt19937& random) {
    std::vector<std::unique_ptr<Directory>> places;
    std::vector<Settings> lives;
    const auto seed_of = [&](int life) -> std::uint64_t {
      return life == 0 && events % 3 == 0   ? sys::PowerCut::kNothing
             : life == 0 && events % 3 == 1 ? sys::PowerCut::kEverything
                                            : random();
    };
    bool first = true;
    std::uint64_t floor = 0;
    for (int life = 0; life < 3; ++life) {
      places.push_back(std::make_unique<Directory>(kMemory));
      lives.push_back(settings(*places.back()));
      const auto power = std::make_shared<sys::PowerCut>();
      if (life > 0) leave(lives[lives.size() - 2], lives.back(), *last_, seed_of(life - 1));
      if (life < 2) power->cut_after(life == 0 ? events : 1 + random() % (events + 40));
      const auto lived = live(lives.back(), first, power, floor);
      if (HasFailure()) return;
      floor = lived.durable;
      first = false;
      last_ = power;
      if (lived.ended) return;
    }
    FAIL() << "the run does not end without a cut";
  }

  static constexpr const char* kMemory = "/dev/shm";
  std::optional<DurableRun> run_;
  plan::PlacementShares placement_;
  std::size_t paths_ = 1;
  std::optional<double> resident_, updated_;  ///< shares of the blocks on a device; none of both: there is no device
  std::shared_ptr<sys::PowerCut> last_;
};

/// Every event with SPILLWAY_EVERY_CUT=1 and in `make nightly`; else some that are spread over the run.
std::uint64_t stride(std::uint64_t events, std::uint64_t cuts) {
  return testing::nightly() || std::getenv("SPILLWAY_EVERY_CUT") != nullptr ? 1
                                                                            : std::max<std::uint64_t>(1, events / cuts);
}

class PowerCutOf : public PowerCut, public ::testing::WithParamInterface<int> {};

TEST_P(PowerCutOf, ATrainingStepLosesNothingThatHasEnded) {
  Shape shape{.layers = 2, .tied = GetParam() == 2, .tokens = 16, .micro_batches = 1};
  if (GetParam() == 4) shape = {.layers = 1, .embedding = false, .head = false, .tokens = 16, .micro_batches = 1};
  if (GetParam() == 5) shape.format = state::StateFormat::bf16;
  if (GetParam() == 6) shape.format = state::StateFormat::int8;
  const plan::PlacementShares placements[] = {{0, 0, 0, 0},         {1, 1, 1, 1},   {1, 0, 1, 1},
                                              {0.5, 0.5, 0.5, 0.5}, {0, 0, 1, 0},   {0, 0, 0, 0},
                                              {0.5, 0.5, 0.5, 0.5}, {0.5, 0, 1, 1}, {1, 0.5, 0.5, 1}};
  if (GetParam() == 7) resident_ = 0.7;
  if (GetParam() == 8) updated_ = 1;
  model(shape, placements[GetParam()], GetParam() == 3 ? 2 : 1);
  const Directory whole(kMemory);
  const auto power = std::make_shared<sys::PowerCut>();
  const auto events = live(settings(whole), true, power, 0).events;
  ASSERT_GT(events, 300U);
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto step = stride(events, GetParam() < 5 ? 5 : 3);
  RecordProperty("events", static_cast<int>(events));
  for (std::uint64_t at = 1 + random() % step; at < events; at += step) {
    cut(at, random);
    ASSERT_FALSE(HasFailure()) << "cut after event " << at << " of " << events;
  }
}

/// Of a run whose steps are not durable: what it leaves is there when it says so.
TEST_F(PowerCut, WhatARunLeavesIsFlushed) {
  model({.layers = 2, .tokens = 16, .micro_batches = 1}, {0, 0.5, 1, 1}, 2);
  const Directory where(kMemory), after(kMemory);
  auto now = DurableRun::settings(where.path(), paths_, placement_, plan::Durability::none);
  const auto then = DurableRun::settings(after.path(), paths_, placement_, plan::Durability::none);
  const auto power = std::make_shared<sys::PowerCut>();
  use_ring(now, sys::power_cut(sys::make_thread_ring, power));
  Engine engine(run_->description(), now);
  engine.start();
  run_->fill(engine);
  run_->train(engine, 1, 3);
  const auto manifest = engine.leave("step 3");
  leave(now, then, *power, sys::PowerCut::kNothing);
  std::ofstream(after.path() / "manifest.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(manifest.data()), static_cast<std::streamsize>(manifest.size()));
  Engine reader(run_->description(), then);
  EXPECT_EQ(reader.read_back(after.path()).step, 3U);
  EXPECT_TRUE(run_->holds(reader, 3));
}

INSTANTIATE_TEST_SUITE_P(Placements, PowerCutOf, ::testing::Range(0, 9));

}  // namespace
}  // namespace spillway
