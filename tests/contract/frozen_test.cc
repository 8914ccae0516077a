// Tensors that are frozen: their bytes never change or move back, and nothing of the rest depends on where they lie.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/lives.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::Shape;
using test::Directory;
using test::DurableRun;
using test::Toy;

Shape random_frozen_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  plan::test::freeze_some(out, random);
  out.format = static_cast<state::StateFormat>(round % 3);
  return out;
}

class Frozen : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, Frozen, test::kEveryDurability, test::durability_name);

TEST_P(Frozen, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(17, spillway::testing::few_or(5, 10), 14, GetParam(), random_frozen_shape);
}

/// Bytes written to a path by each of two steps, of a model with frozen tensors on it.
Bytes written_by_a_step(const std::string& frozen) {
  const auto description = plan::test::describe(
      {.layers = 3, .ffn = 1024, .tokens = 16, .micro_batches = 1, .chunk_elements = 1 << 16, .frozen = frozen});
  const Directory where;
  auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 1});
  Engine engine(description, settings);
  engine.start();
  Toy toy(engine, description, 1);
  toy.fill();
  const auto written = [&] {
    engine.flush();
    return engine.counters().paths.at("path:0").written;
  };
  toy.step(1);
  engine.commit("");
  const auto before = written();
  toy.step(2);
  engine.commit("");
  return written() - before;
}

TEST(FrozenTensors, AreNotWrittenByAStep) {
  const auto all = written_by_a_step("");
  const auto some = written_by_a_step("up|down|embed");
  const auto table = 500 * 64, matrices = 3 * 2 * 1024 * 64;
  EXPECT_GT(all, 14U * (table + matrices)) << "state, weight and gradient";
  EXPECT_LT(some, all / 10);
}

TEST(FrozenTensors, AreWhatWasStoredRoundedAsTheWeightOfAnyTensorIs) {
  const auto description = plan::test::describe({.frozen = "down"}), trainable = plan::test::describe({});
  Settings settings;
  settings.budget.dram = 1 * GiB;
  const auto weights = [&](const plan::Description& of) {
    const Directory out;
    Engine engine(of, settings);
    engine.start();
    Toy toy(engine, of, of.micro_batches);
    toy.fill();
    engine.save_weights(out.path(), 1 * GiB);
    std::ifstream in(out.path() / "model.safetensors", std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  };
  EXPECT_EQ(weights(description), weights(trainable));
}

/// The state that stands alone has files of what is trainable.
TEST(FrozenTensors, AStateThatStandsAloneIsReadByTheSameTensorsOnly) {
  const auto description = plan::test::describe({.tied = false, .frozen = "up|head"});
  Settings settings;
  settings.budget.dram = 1 * GiB;
  const Directory out;
  std::vector<float> expected;
  {
    Engine engine(description, settings);
    engine.start();
    Toy toy(engine, description, description.micro_batches);
    toy.fill();
    for (int s = 1; s <= 3; ++s) toy.step(static_cast<std::uint64_t>(s));
    engine.save_weights(out.path(), 1 * GiB);
    engine.save_state(out.path() / "state");
    toy.step(4);
    expected = toy.masters();
  }
  Engine engine(description, settings);
  engine.start();
  engine.load_state(out.path() / "state", out.path(), 3);
  Toy toy(engine, description, description.micro_batches);
  toy.step(4);
  EXPECT_EQ(toy.masters(), expected);

  const auto other = plan::test::describe({.tied = false, .frozen = "down|head"});
  Engine stranger(other, settings);
  stranger.start();
  try {
    stranger.load_state(out.path() / "state", out.path(), 3);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("layers.0."), std::string::npos) << error.what();
  }
}

TEST(FrozenTensors, HaveNoGradientAndVolumesOfAnotherChoiceAreRefused) {
  const DurableRun run({.layers = 1, .tokens = 32, .frozen = "up"}, 1);
  const Directory where;
  const auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 0});
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 1);
    engine.begin_step({.ids = std::vector<std::int64_t>(32, 1), .counts = {16, 16}});
    engine.embedding_forward();
    while (const auto pass = engine.next_pass()) {
      if (pass->kind == plan::PassKind::backward && pass->block == 1) {
        const std::vector<std::byte> zeros(64 * 96 * 2);
        EXPECT_NO_THROW(engine.gradient(2, zeros.data(), 0));
        EXPECT_THROW(engine.gradient(1, zeros.data(), 0), Error) << "layers.0.up";
        break;
      }
      if (pass->kind == plan::PassKind::head_gradient) {
        const std::vector<std::byte> zeros(pass->rows * 64 * 2);
        for (const std::uint64_t m : {0, 1}) engine.head_gradient(zeros.data(), m);
      }
      engine.end_pass();
    }
  }
  const auto other = plan::test::describe({.layers = 1, .tokens = 32, .frozen = "down"});
  Engine engine(other, settings);
  EXPECT_THROW(engine.start({.reopen = true}), Error);
}

}  // namespace
}  // namespace spillway
