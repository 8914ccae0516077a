// Tensors that are kept in fp32 while the rest computes in 16 bits: exact masters without a remainder, gradients in
// fp32, and no bit that depends on where they lie.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "tests/contract/lives.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::Shape;
using test::Directory;
using test::DurableRun;
using test::Toy;

Shape random_fp32_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  const std::vector<std::string> in_fp32{"norm", "up|norm", "down", "^layers\\.0", "layers|norm"};
  out.fp32 = in_fp32[random() % in_fp32.size()];
  if (random() % 2 == 0) plan::test::freeze_some(out, random);
  if (random() % 3 == 0) out.subspace = "up";
  out.format = static_cast<state::StateFormat>(round % 3);
  return out;
}

class Fp32Runs : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, Fp32Runs, test::kEveryDurability, test::durability_name);

TEST_P(Fp32Runs, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(19, spillway::testing::few_or(5, 10), 14, GetParam(), random_fp32_shape);
}

/// A model of one layer, whose gradients do not depend on its weights.
plan::Description one_layer(state::ComputeType type, std::uint64_t micro_batches) {
  plan::Description out;
  out.weight_dtype = type;
  out.blocks = {{"layer",
                 state::BlockRole::layer,
                 {{.name = "w", .shape = {40, 64}, .decay = true},
                  {.name = "gate", .shape = {50, 90}, .decay = true, .form = state::Form::fp32},
                  {.name = "fixed", .shape = {300}, .training = state::Training::frozen, .form = state::Form::fp32},
                  {.name = "bias", .shape = {77}, .form = state::Form::fp32}}}};
  out.hidden_size = 64;
  out.tokens = 8;
  out.micro_batches = micro_batches;
  return out;
}

std::vector<float> normal(std::size_t n, std::uint64_t seed, float scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> out(n);
  for (auto& value : out) value = draw(random);
  return out;
}

const std::byte* bytes(const auto& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

/// One step in which tensor t of micro-batch m has the gradient normal(n, 1000 step + 10 t + m).
StepResult step(Engine& engine, std::uint64_t number, std::uint64_t micro_batches, const StepUpdate& update) {
  engine.begin_step({.counts = std::vector<std::uint64_t>(micro_batches, 8 / micro_batches)});
  while (const auto pass = engine.next_pass()) {
    for (std::size_t t = 0; pass->kind == plan::PassKind::backward && t < 4; ++t) {
      const auto& it = engine.layout().tensors()[t];
      for (std::uint64_t m = 0; m < micro_batches && is_trainable(it.spec.training); ++m) {
        const auto values = normal(it.elements, 1000 * number + 10 * t + m, 0.1F);
        std::vector<std::uint16_t> zeros(it.elements);  // of what is narrow, so that the norm is that of the others
        engine.gradient(t, it.spec.form == state::Form::fp32 ? bytes(values) : bytes(zeros), m);
      }
    }
    engine.end_pass();
  }
  return engine.end_step(update);
}

class Updates : public ::testing::TestWithParam<state::ComputeType> {};

INSTANTIATE_TEST_SUITE_P(Types, Updates, ::testing::Values(state::ComputeType::bf16, state::ComputeType::fp16),
                         [](const auto& test) { return std::string(state::name_of(test.param)); });

/// What a tensor that is trainable should have become: the same steps by the optimizer alone, which has its own tests.
std::vector<float> by_the_optimizer(std::vector<float> weight, std::size_t t, std::uint64_t steps,
                                    std::uint64_t micro_batches, const StepUpdate& update, double clip, bool decay) {
  Optimizer optimizer({{"it", weight.size(), state::ComputeType::fp32}}, {});
  for (std::uint64_t s = 1; s <= steps; ++s) {
    auto grad = normal(weight.size(), 1000 * s + 10 * t, 0.1F);
    for (std::uint64_t m = 1; m < micro_batches; ++m) {
      const auto more = normal(weight.size(), 1000 * s + 10 * t + m, 0.1F);
      for (std::size_t i = 0; i < grad.size(); ++i) grad[i] += more[i];
    }
    auto of = optim::make_step(
        optim::adamw, {{"learning_rate", update.learning_rate}, {"weight_decay", decay ? update.weight_decay : 0}});
    of.gradient_scale = static_cast<float>(clip);
    of.step = static_cast<std::int64_t>(s);
    optimizer.step(
        {{{.tensor = 0, .weight = reinterpret_cast<std::byte*>(weight.data()), .grad = bytes(grad), .step = of}}});
  }
  return weight;
}

TEST_P(Updates, AreThoseOfFp32BitForBit) {
  constexpr std::uint64_t kSteps = 5;
  const StepUpdate update{.learning_rate = 1e-2, .weight_decay = 0.1};
  for (const std::uint64_t micro_batches : {1, 3}) {
    auto description = one_layer(GetParam(), micro_batches);
    Settings settings;
    settings.budget.dram = 1 * GiB;
    Engine engine(description, settings);
    engine.start();
    engine.set_loss_scale({.scale = 1});
    std::map<std::size_t, std::vector<float>> begun;
    for (const std::size_t t : {1, 2, 3}) {
      begun[t] = normal(engine.layout().tensors()[t].elements, t, 1);
      engine.store_tensor(t, 0, begun[t]);
    }
    for (std::uint64_t s = 1; s <= kSteps; ++s) step(engine, s, micro_batches, update);
    for (const std::size_t t : {1, 2, 3}) {
      std::vector<float> found(begun[t].size());
      engine.fetch_tensor(t, 0, found);
      const auto expected = t == 2 ? begun[t] : by_the_optimizer(begun[t], t, kSteps, micro_batches, update, 1, t == 1);
      EXPECT_EQ(found, expected) << "tensor " << t << ", " << micro_batches << " micro-batches";
      EXPECT_EQ(found == begun[t], t == 2);
    }
  }
}

TEST(Fp32Tensors, CountForTheNormAndAreSkippedWithTheRest) {
  const auto description = one_layer(state::ComputeType::bf16, 2);
  Settings settings;
  settings.budget.dram = 1 * GiB;
  Engine engine(description, settings);
  engine.start();
  double squares = 0;
  for (const std::size_t t : {1, 3}) {
    const auto n = engine.layout().tensors()[t].elements;
    const auto one = normal(n, 1000 + 10 * t, 0.1F), other = normal(n, 1000 + 10 * t + 1, 0.1F);
    for (std::size_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(one[i] + other[i]), 2);
  }
  const auto result = step(engine, 1, 2, {.learning_rate = 1e-2, .max_grad_norm = 1});
  EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-6);
  EXPECT_LT(result.clip, 0.2);
}

/// Their passes find fp32 values, and those alone.
TEST(Fp32Tensors, AreHandedOutAsTheyWereStored) {
  const auto description = one_layer(state::ComputeType::bf16, 1);
  for (const double share : {0.0, 1.0}) {
    const Directory where;
    const auto settings = DurableRun::settings(where.path(), 1, {share, share, share, share});
    Engine engine(description, settings);
    engine.start();
    std::vector<std::vector<float>> stored;
    for (std::size_t t = 0; t < 4; ++t) {
      stored.push_back(normal(engine.layout().tensors()[t].elements, t, 1));
      engine.store_tensor(t, 0, stored.back());
    }
    engine.begin_step({.counts = {8}, .training = false});
    std::size_t seen = 0;
    while (const auto pass = engine.next_pass()) {
      for (std::size_t t = 1; t < 4; ++t) {
        const auto* at = reinterpret_cast<const float*>(pass->weights + 2 * engine.layout().tensors()[t].first);
        EXPECT_EQ(std::vector<float>(at, at + stored[t].size()), stored[t]);
        ++seen;
      }
      engine.end_pass();
    }
    engine.end_step({});
    EXPECT_EQ(seen, 3U);
  }
}

/// Nothing has a remainder then, and no file of them is written.
TEST(Fp32Tensors, AStateOfThemAloneIsSavedAndGoesOn) {
  const DurableRun run({.layers = 2, .tokens = 32, .frozen = "up|down|embed|head", .fp32 = "norm"}, 4);
  const Directory out;
  Settings settings;
  settings.budget.dram = 4 * GiB;
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 2);
    engine.save_weights(out.path(), 1 * GiB);
    engine.save_state(out.path() / "state");
  }
  Engine engine(run.description(), settings);
  engine.start();
  engine.load_state(out.path() / "state", out.path(), 2);
  EXPECT_TRUE(run.holds(engine, 2));
  run.train(engine, 3, 4);
  EXPECT_TRUE(run.holds(engine, 4));
}

TEST(Fp32Tensors, VolumesOfARunWithoutThemAreRefused) {
  const DurableRun run({.layers = 1, .tokens = 32, .fp32 = "norm"}, 1);
  const Directory where;
  const auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 0});
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 1);
  }
  const auto other = plan::test::describe({.layers = 1, .tokens = 32});
  Engine engine(other, settings);
  EXPECT_THROW(engine.start({.reopen = true}), Error);
}

}  // namespace
}  // namespace spillway
