// Every optimizer in every state format: placement, a resume and a recovery change no bit, states are saved and loaded
// as they are, and a step whose gradient is not finite changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"

namespace spillway {
namespace {

using plan::test::Shape;
using state::StateFormat;
using test::Directory;
using test::DurableRun;
using test::Toy;

using Rule = std::tuple<const optim::Descriptor*, StateFormat>;

std::vector<Rule> rules() {
  std::vector<Rule> out;
  for (const auto* optimizer : optim::all()) {
    for (const auto format : {StateFormat::exact, StateFormat::bf16, StateFormat::int8}) {
      if (optimizer->keeps(state::moments_of(format, false))) out.emplace_back(optimizer, format);
    }
  }
  return out;
}

class Formats : public ::testing::TestWithParam<Rule> {
 protected:
  [[nodiscard]] static Shape shape() {
    Shape out{.layers = 2, .tokens = 16, .micro_batches = 2};
    std::tie(out.optimizer, out.format) = GetParam();
    return out;
  }
  [[nodiscard]] static Settings in_memory() {
    Settings out;
    out.budget.dram = 1 * GiB;
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(Rules, Formats, ::testing::ValuesIn(rules()), [](const auto& test) {
  return std::string(std::get<0>(test.param)->name) + "_" + state::name_of(std::get<1>(test.param));
});

TEST_P(Formats, PlacementChangesNoBitNorDoesGoingOnAfterACrash) {
  constexpr std::uint64_t kSteps = 12;
  const DurableRun run(shape(), kSteps);
  const plan::PlacementShares placements[] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {0.5, 0.3, 0.7, 0}, {1, 0, 1, 1}};
  const Directory where;
  std::mt19937 random(3);
  std::uint64_t done = 0;
  std::size_t replayed = 0;
  for (int life = 0; done < kSteps; ++life) {
    auto settings = DurableRun::settings(where.path(), 2, placements[life % 4]);
    settings.threads = 1 + random() % 3;
    test::use_fake_nodes(settings, random);
    Engine engine(run.description(), settings);
    const auto found = engine.start({.reopen = life > 0});
    replayed += found.replayed;
    if (life == 0) run.fill(engine);
    ASSERT_EQ(found.step, done);
    ASSERT_TRUE(run.holds(engine, done)) << "life " << life;
    const auto last = std::min(kSteps, done + 3 + random() % 2);
    run.train(engine, done + 1, last);
    done = last;
    engine.close();
  }
  EXPECT_GT(replayed, 0U);
}

TEST_P(Formats, ASavedStateGoesOnBitByBit) {
  const DurableRun run(shape(), 6);
  const Directory out;
  {
    Engine engine(run.description(), in_memory());
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 3);
    engine.save_weights(out.path(), 1 * GiB);
    engine.save_state(out.path() / "state");
  }
  Engine engine(run.description(), in_memory());
  engine.start();
  EXPECT_EQ(engine.load_state(out.path() / "state", out.path(), 3), std::get<1>(GetParam()));
  EXPECT_TRUE(run.holds(engine, 3));
  run.train(engine, 4, 6);
  EXPECT_TRUE(run.holds(engine, 6));
}

TEST_P(Formats, AStateOfAnotherFormatIsConverted) {
  auto other = shape();
  const DurableRun run(shape(), 5);
  const Directory out;
  std::vector<float> start;
  {
    Engine engine(run.description(), in_memory());
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 4);
    start = Toy(engine, run.description(), 2).masters();
    engine.save_weights(out.path(), 1 * GiB);
    engine.save_state(out.path() / "state");
  }
  const auto description_in = [&](StateFormat format) {
    other.format = format;
    return plan::test::describe(other);
  };
  for (const auto& [optimizer, format] : rules()) {
    if (optimizer != std::get<0>(GetParam())) continue;
    const auto description = description_in(format);
    Engine engine(description, in_memory());
    engine.start();
    EXPECT_EQ(engine.load_state(out.path() / "state", out.path(), 4), std::get<1>(GetParam()));
    Toy toy(engine, description, 2);
    EXPECT_EQ(toy.masters(), start) << "masters are never converted";
    EXPECT_EQ(toy.step(5).step, 5);
    const auto ends = toy.masters();
    EXPECT_TRUE(std::ranges::all_of(ends, [](float value) { return std::isfinite(value); }));
  }
}

TEST_P(Formats, AStepThatIsNotFiniteChangesNothing) {
  const auto description = plan::test::describe(shape());
  const auto outcome = [&](bool poisoned) {
    Engine engine(description, in_memory());
    engine.start();
    Toy toy(engine, description, 2);
    toy.fill();
    toy.step(1);
    if (poisoned) {
      toy.poison(true);
      const auto result = toy.step(2);
      EXPECT_TRUE(result.skipped);
      EXPECT_EQ(result.step, 1);
      toy.poison(false);
    }
    const auto result = toy.step(3);
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.step, 2);
    return toy.masters();
  };
  EXPECT_EQ(outcome(true), outcome(false));
}

TEST(Formats, AVolumeOfAnotherFormatOrOptimizerIsRefused) {
  Shape shape{.layers = 1, .tokens = 16};
  const DurableRun run(shape, 2);
  const Directory where;
  const auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 0});
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 2);
    engine.close();
  }
  const auto refusal = [&] {
    try {
      Engine(plan::test::describe(shape), settings).start({.reopen = true});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal(), "accepted");
  shape.optimizer = &optim::adam;
  EXPECT_NE(refusal().find("another optimizer or state_format"), std::string::npos) << refusal();
  shape.optimizer = &optim::adamw;
  shape.format = StateFormat::int8;
  EXPECT_NE(refusal().find("another optimizer or state_format"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace spillway
