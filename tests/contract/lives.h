// A run of several lives: each has another placement, other threads and nodes, and ends after some steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"

namespace spillway::test {

/// All of it in memory, all on the paths, or any share of each.
inline plan::PlacementShares random_placement(std::mt19937& random) {
  std::uniform_real_distribution<> share(0, 1);
  const auto kind = random() % 3;
  const auto pick = [&]() -> double { return kind == 0 ? 0 : kind == 1 ? 1 : share(random); };
  return {pick(), pick(), pick(), pick()};
}

/// Of tests that are run at each.
inline const auto kEveryDurability =
    ::testing::Values(plan::Durability::none, plan::Durability::checkpoint, plan::Durability::step);
inline std::string durability_name(const ::testing::TestParamInfo<plan::Durability>& test) {
  return plan::name_of(test.param);
}

/// Trains all steps of `run` in lives of at most `longest` steps, each with what `settings(life)` returns; every one
/// begins where the one before has ended. Use with ASSERT_NO_FATAL_FAILURE.
template <class MakeSettings>
void expect_each_life_goes_on(const DurableRun& run, std::uint64_t longest, std::mt19937& random,
                              const MakeSettings& settings) {
  std::uint64_t done = 0;
  for (int life = 0; done < run.steps(); ++life) {
    SCOPED_TRACE(text("life ", life));
    Engine engine(run.description(), settings(life));
    const auto found = engine.start({.reopen = life > 0});
    ASSERT_EQ(found.has_step, life > 0);
    ASSERT_EQ(found.step, done);
    if (life == 0) {
      run.fill(engine);
    } else {
      ASSERT_EQ(found.payload, text("step ", done));
      ASSERT_TRUE(run.holds(engine, done));
    }
    const auto last = std::min(run.steps(), done + 1 + random() % longest);
    run.train(engine, done + 1, last);
    done = last;
    if (random() % 2 == 0) {
      ASSERT_TRUE(run.holds(engine, done));
    }
    engine.close();
  }
}

/// Trains all steps of `run`, in lives of 1 to 6 steps where one can go on from another, and expects the uninterrupted
/// run's bits at the begin and end of each. Use with ASSERT_NO_FATAL_FAILURE.
inline void expect_same_bits_in_lives(const DurableRun& run, std::uint64_t steps, plan::Durability durability,
                                      std::mt19937& random) {
  using plan::Durability;
  const Directory where;
  const auto paths = 1 + random() % 3;
  std::vector<std::filesystem::path> kept;
  std::uint64_t done = 0;
  for (int life = 0; done < steps; ++life) {
    SCOPED_TRACE(text("life ", life));
    auto placement = random_placement(random);
    if (durability == Durability::checkpoint) placement.weight = std::min(*placement.weight, 0.5);
    auto settings = DurableRun::settings(where.path(), paths, placement, durability);
    settings.budget.checkpoints = 2;
    settings.threads = 1 + random() % 2;
    settings.piece_period = 2;
    use_fake_nodes(settings, random);
    Engine engine(run.description(), settings);
    const bool goes_on = life > 0 && durability != Durability::none;
    const auto found = engine.start({.reopen = goes_on, .pinned = [&] { return kept; }});
    ASSERT_EQ(found.has_step, goes_on);
    if (!goes_on) run.fill(engine);
    const auto from = goes_on ? found.step : 0;
    ASSERT_EQ(from, goes_on ? done : 0U);
    ASSERT_TRUE(run.holds(engine, from));
    done = durability == Durability::none ? steps : std::min(steps, done + 1 + random() % 6);
    run.train(engine, from + 1, done);
    ASSERT_TRUE(run.holds(engine, done));
    if (durability == Durability::checkpoint) {
      kept = {where.path() / text("checkpoint-", done)};
      std::filesystem::create_directory(kept.front());
      engine.save_manifest(kept.front());
    }
    engine.close();
  }
}

/// The same of `rounds` models: make(random, round) gives the shape of each.
template <class Make>
void expect_same_bits_of_models(unsigned seed, int rounds, std::uint64_t steps, plan::Durability durability,
                                const Make& make) {
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(text("round ", round));
    const DurableRun run(make(random, round), steps);
    ASSERT_NO_FATAL_FAILURE(expect_same_bits_in_lives(run, steps, durability, random));
  }
}

}  // namespace spillway::test
