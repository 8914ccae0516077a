// A durable run whose chunks are updated during backward: its steps, its checkpoints, and its way on with any schedule.
#include <gtest/gtest.h>

#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"

namespace spillway {
namespace {

using plan::test::Shape;
using test::Directory;
using test::DurableRun;

class EarlyDurable : public ::testing::Test {
 protected:
  [[nodiscard]] Settings settings(plan::Updates updates, const plan::PlacementShares& placement,
                                  plan::Durability durability = plan::Durability::step) const {
    auto out = DurableRun::settings(where_.path(), 2, placement, durability);
    out.budget.update_schedule = updates;
    out.budget.clipping = false;
    out.budget.checkpoints = 3;
    return out;
  }
  [[nodiscard]] std::filesystem::path save(Engine& engine, std::uint64_t step) const {
    auto directory = where_.path() / text("checkpoint-", step);
    std::filesystem::create_directory(directory);
    engine.save_manifest(directory);
    return directory;
  }

  const DurableRun run_{
      {.layers = 3, .tied = false, .tokens = 32}, 24, StepUpdate{.learning_rate = 1e-2, .weight_decay = 0.1}};
  const Directory where_;
};

TEST_F(EarlyDurable, ARunGoesOnWithAnyOtherScheduleAndPlacement) {
  std::mt19937 random(3);
  std::uint64_t done = 0;
  std::size_t early = 0;
  for (int life = 0; done < run_.steps(); ++life) {
    static constexpr std::array<plan::PlacementShares, 4> kPlacements = {
        {{1, 1, 1, 1}, {1, 1, 0, 1}, {0.5, 0.7, 0.3, 0}, {0, 0, 0, 0}}};
    Engine engine(run_.description(),
                  settings(life % 3 == 2 ? plan::Updates::deferred : plan::Updates::early, kPlacements[random() % 4]));
    early += engine.plan().early_chunks;
    const auto found = engine.start({.reopen = life > 0});
    ASSERT_EQ(found.has_step, life > 0);
    ASSERT_EQ(found.step, done);
    if (life == 0) {
      run_.fill(engine);
    } else {
      ASSERT_TRUE(run_.holds(engine, done)) << "life " << life;
    }
    const auto last = std::min(run_.steps(), done + 1 + random() % 4);
    run_.train(engine, done + 1, last);
    done = last;
    if (random() % 2 == 0) {
      ASSERT_TRUE(run_.holds(engine, done)) << "life " << life;
    }
    engine.close();
  }
  EXPECT_GT(early, 0U);
}

TEST_F(EarlyDurable, EveryCheckpointCanBeGoneBackTo) {
  for (const auto durability : {plan::Durability::step, plan::Durability::checkpoint}) {
    std::vector<std::filesystem::path> kept;
    // With all weights and states in memory a checkpoint would stand alone.
    auto first = settings(plan::Updates::early, {1, 0.9, 1, 0}, durability);
    first.storage.overwrite = true;
    {
      Engine engine(run_.description(), first);
      ASSERT_GT(engine.plan().early_chunks, 0U);
      engine.start();
      run_.fill(engine);
      for (const std::uint64_t step : {3, 7}) {
        run_.train(engine, step == 3 ? 1 : 4, step);
        kept.push_back(save(engine, step));
      }
      run_.train(engine, 8, 10);
      engine.close();
    }
    std::uint64_t step = 3;
    for (const auto& checkpoint : kept) {
      Engine engine(run_.description(), settings(plan::Updates::early, {1, 0.8, 0, 1}, durability));
      const auto found = engine.start({.reopen = true, .checkpoint = checkpoint, .pinned = [&] { return kept; }});
      ASSERT_EQ(found.step, step);
      ASSERT_TRUE(run_.holds(engine, step));
      run_.train(engine, step + 1, step + 4);
      ASSERT_TRUE(run_.holds(engine, step + 4));
      engine.close();
      step = 7;
    }
    for (const auto& checkpoint : kept) std::filesystem::remove_all(checkpoint);
  }
}

}  // namespace
}  // namespace spillway
