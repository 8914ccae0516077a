// A step that has ended is not lost: whatever lies where, and however the run goes on.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "spillway/engine_testing.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/lives.h"
#include "tests/contract/slow_ring.h"
#include "tests/nightly.h"
#include "tests/sys/failing.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::Shape;
using test::Directory;
using test::DurableRun;

TEST(Durability, ARunThatEndedGoesOnWhereItWasWithAnyOtherPlacement) {
  std::mt19937 random(5);
  for (int round = 0; round < spillway::testing::few_or(5, 12); ++round) {
    const DurableRun run(plan::test::random_shape(random, round), 24);
    const Directory where;
    const auto paths = 1 + random() % 3;
    SCOPED_TRACE(text("round ", round));
    ASSERT_NO_FATAL_FAILURE(test::expect_each_life_goes_on(run, 9, random, [&](int) {
      auto settings = DurableRun::settings(where.path(), paths, test::random_placement(random));
      settings.threads = 1 + random() % 3;
      test::use_fake_nodes(settings, random);
      return settings;
    }));
  }
}

/// Checkpoints on the paths, of a run that goes on, goes back, and forgets them.
class Checkpoints : public ::testing::TestWithParam<Durability> {
 protected:
  [[nodiscard]] Settings settings(const plan::PlacementShares& placement = {0.5, 0.5, 0.5, 0.5}) const {
    auto out = DurableRun::settings(where_.path(), 1, placement, GetParam());
    out.budget.checkpoints = 3;
    return out;
  }
  [[nodiscard]] std::filesystem::path save(Engine& engine, std::uint64_t step) const {
    auto directory = where_.path() / text("checkpoint-", step);
    std::filesystem::create_directory(directory);
    engine.save_manifest(directory);
    return directory;
  }
  static std::vector<std::byte> forget(const std::filesystem::path& checkpoint) {
    std::ifstream in(checkpoint / "manifest.bin", std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::filesystem::remove_all(checkpoint);
    const auto view = std::as_bytes(std::span(bytes));
    return {view.begin(), view.end()};
  }

  const DurableRun run_{{.layers = 2, .tokens = 32}, 24};
  const Directory where_;
};

TEST_P(Checkpoints, EveryOneThatIsListedCanBeGoneBackTo) {
  std::vector<std::filesystem::path> kept;
  {
    Engine engine(run_.description(), settings());
    engine.start();
    run_.fill(engine);
    for (std::uint64_t s = 4; s <= 20; s += 4) {
      run_.train(engine, s - 3, s);
      kept.push_back(save(engine, s));
      if (kept.size() > 2) {
        engine.release_manifest(forget(kept.front()));
        kept.erase(kept.begin());
      }
    }
    run_.train(engine, 21, 22);
    engine.close();
  }
  std::uint64_t step = 16;
  for (const auto& checkpoint : {kept[0], kept[1], kept[0]}) {  // back, on to a newer line, and back again
    Engine engine(run_.description(), settings({0, 0, 0, 0}));
    const auto found = engine.start({.reopen = true, .checkpoint = checkpoint, .pinned = [&] { return kept; }});
    ASSERT_TRUE(found.has_step);
    ASSERT_EQ(found.step, step);
    ASSERT_EQ(found.payload, text("step ", step));
    ASSERT_TRUE(run_.holds(engine, step));
    run_.train(engine, step + 1, step + 3);
    ASSERT_TRUE(run_.holds(engine, step + 3));
    engine.close();
    step = step == 16 ? 20 : 16;
  }
  Engine engine(run_.description(), settings());
  const auto found = engine.start({.reopen = true, .pinned = [&] { return kept; }});
  ASSERT_TRUE(found.has_step);
  EXPECT_EQ(found.step, GetParam() == Durability::step ? 19 : 16);
  EXPECT_TRUE(run_.holds(engine, found.step));
}

TEST_P(Checkpoints, CanBeReadBackAndStandAlone) {
  const Directory out;
  std::vector<std::filesystem::path> kept;
  {
    Engine engine(run_.description(), settings());
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, 5);
    kept.push_back(save(engine, 5));
    run_.train(engine, 6, 9);
    kept.push_back(save(engine, 9));
    engine.close();
  }
  for (const bool older : {true, false}) {
    Engine reader(run_.description(), settings());
    const auto found = reader.read_back(older ? std::optional(kept[0]) : std::nullopt);
    ASSERT_EQ(found.step, older ? 5U : 9U);
    const auto directory = out.path() / text(found.step);
    std::filesystem::create_directory(directory);
    reader.save_weights(directory, 1 * GiB);
    reader.save_state(directory / "state");
    reader.close();
    Settings plain;
    plain.budget.dram = 4 * GiB;
    Engine engine(run_.description(), plain);
    engine.start();
    engine.load_state(directory / "state", directory, found.updates);
    EXPECT_TRUE(run_.holds(engine, found.step));
  }
}

/// Between checkpoints nothing else tells the journal of a step.
TEST_P(Checkpoints, OneAfterAStepThatChangedNothingHoldsTheStepsBefore) {
  const auto& description = run_.description();
  std::vector<float> saved;
  {
    Engine engine(description, settings());
    engine.start();
    test::Toy toy(engine, description, description.micro_batches);
    toy.fill();
    const auto step = [&](std::uint64_t number, bool poisoned) {
      toy.poison(poisoned);
      toy.step(number);
      engine.commit(text("step ", number));
    };
    step(1, false);
    static_cast<void>(save(engine, 1));
    step(2, false);
    step(3, true);
    step(4, true);
    saved = toy.masters();
    static_cast<void>(save(engine, 4));
    step(5, false);
    engine.close();
  }
  Engine engine(description, settings());
  ASSERT_EQ(engine.read_back(where_.path() / "checkpoint-4").step, 4U);
  EXPECT_EQ(test::Toy(engine, description, description.micro_batches).masters(), saved);
}

INSTANTIATE_TEST_SUITE_P(Levels, Checkpoints, ::testing::Values(Durability::step, Durability::checkpoint),
                         test::durability_name);

/// A run with checkpoints on its paths has more memory the next time, so that all weights and states stay there.
TEST(Durability, ARunThatHasRoomInMemoryGoesOnFromItsPaths) {
  const DurableRun run({.layers = 2, .tokens = 32}, 6);
  const Directory where;
  const auto settings = [&](double share) {
    auto out = DurableRun::settings(where.path(), 2, {share, share, share, share}, Durability::checkpoint);
    out.budget.checkpoints = 2;
    return out;
  };
  const auto checkpoint = where.path() / "checkpoint-2";
  std::filesystem::create_directory(checkpoint);
  {
    Engine engine(run.description(), settings(0));
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 2);
    engine.save_manifest(checkpoint);
    run.train(engine, 3, 4);
    static_cast<void>(engine.leave("step 4"));
    engine.close();
  }
  for (const bool if_found : {false, true}) {
    Engine engine(run.description(), settings(1));
    EXPECT_EQ(engine.plan().durability, Durability::none);
    EXPECT_ERROR(engine.start({.reopen = true, .if_found = if_found}), ErrorCode::bad_input,
                 "the paths hold finished steps of the run a run");
  }
  auto resuming = settings(1);
  resuming.budget.resumes = true;
  for (const std::uint64_t from : {4U, 2U}) {
    SCOPED_TRACE(text("from step ", from));
    Engine engine(run.description(), resuming);
    OpenOptions options{.reopen = true, .pinned = [&] { return std::vector{checkpoint}; }};
    if (from == 2) options.checkpoint = checkpoint;
    ASSERT_EQ(engine.start(options).step, from);
    ASSERT_TRUE(run.holds(engine, from));
    run.train(engine, from + 1, run.steps());
    EXPECT_TRUE(run.holds(engine, run.steps()));
    engine.close();
  }
}

TEST(Durability, WhatIsNoDurableRunIsRefusedByName) {
  const DurableRun run({.layers = 1, .tokens = 32}, 2);
  const Directory where;
  const auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 0});
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 2);
    EXPECT_THROW(run.fill(engine), Error) << "a durable run has begun";
    engine.close();
  }
  const auto message_of = [](const plan::Description& description, const Settings& other) -> std::string {
    try {
      Engine(description, other).start({.reopen = true});
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto larger = plan::test::describe({.layers = 2, .tokens = 32});
  EXPECT_NE(message_of(larger, settings).find("another model"), std::string::npos) << message_of(larger, settings);
  auto stranger = settings;
  stranger.run = "another";
  EXPECT_NE(message_of(run.description(), stranger).find("belongs to run 'a run'"), std::string::npos)
      << message_of(run.description(), stranger);
  auto two = DurableRun::settings(where.path(), 2, {0, 0, 0, 0});
  EXPECT_NE(message_of(run.description(), two).find("holds a part of this run"), std::string::npos);
  Engine engine(run.description(), settings);
  EXPECT_EQ(engine.start({.reopen = true}).step, 2U);
  EXPECT_TRUE(run.holds(engine, 2));
}

/// Updates are done long before their snapshots are written, and states are wanted back sooner than weights that stay
/// in memory. First halves of snapshots must not take the places that second ones need: nothing would ever be released.
TEST(Durability, TheLeastRoomIsEnough) {
  const DurableRun run({.layers = 16, .tokens = 32, .chunk_elements = 4096}, 4);
  for (const auto& placement : {plan::PlacementShares{1, 0, 0.25, 1}, plan::PlacementShares{0, 1, 0, 0},
                                plan::PlacementShares{0.5, 0.5, 0.5, 1}}) {
    const Directory where;
    auto settings = DurableRun::settings(where.path(), 1, placement);
    auto& capacity = settings.budget.paths.front().capacity;
    Bytes refused = 1 * MiB;
    while (capacity > refused + 1 * MiB) {  // the least that is not refused
      const auto kept = capacity;
      capacity = round_up((refused + kept) / 2, 1 * MiB);
      try {
        (void)Engine(run.description(), settings);  // plans
      } catch (const Error&) {
        refused = std::exchange(capacity, kept);
      }
    }
    use_ring(settings, [](const sys::File& file, unsigned depth) {
      return std::make_unique<test::SlowRing>(sys::make_ring(file, depth));
    });
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, run.steps());
    EXPECT_TRUE(run.holds(engine, run.steps())) << human(capacity);
    engine.close();
  }
}

}  // namespace
}  // namespace spillway
