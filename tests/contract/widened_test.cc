// Weights of 16 bits that passes multiply in fp32: they find them widened, their gradients are rounded once, and no bit
// depends on where anything lies.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using plan::test::Shape;
using state::ComputeType;
using test::Directory;
using test::DurableRun;
using test::to_bf16;
using test::to_float;

Shape random_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  out.compute = ComputeType::fp32;
  if (random() % 3 == 0) out.fp32 = random() % 2 == 0 ? "norm" : "up|norm";
  if (random() % 2 == 0) plan::test::freeze_some(out, random);
  if (random() % 3 == 0) out.subspace = "down";
  out.format = static_cast<state::StateFormat>(round % 3);
  return out;
}

class Widened : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, Widened, test::kEveryDurability, test::durability_name);

TEST_P(Widened, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(47, spillway::testing::few_or(3, 5), 8, GetParam(), random_shape);
}

Outcome train(const plan::Description& description, Settings settings, bool queued) {
  test::Training training(description, std::move(settings), queued);
  Outcome out;
  for (std::uint64_t s = 0; s < 5; ++s) out.norms.push_back(training.toy.step(s).grad_norm);
  out.masters = training.toy.masters();
  return out;
}

TEST(WidenedPasses, ADeviceChangesNoBit) {
  std::mt19937 random(53);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < 6; ++round) {
    const auto description = describe(random_shape(random, round));
    const auto expected = train(description, everything_in_dram(), false);
    for (int placement = 0; placement < 3; ++placement) {
      auto settings = test::with_device({.capacity = 1 * GiB}, random());
      auto& device = *settings.budget.device;
      device.coalesce_to = random() % (48 * KiB);
      if (placement > 0) device.weight = placement == 1 ? 0 : share(random);
      if (placement > 0) device.activation = placement == 1 ? 0 : share(random);
      const bool updates = placement > 1 && description.state_format == state::StateFormat::exact;
      if (updates && random() % 2 == 0) device.state = share(random);
      if (updates && random() % 2 == 0) device.device_updated = share(random);
      const Directory directory;
      if (placement == 2) {
        settings.storage.places.push_back({directory.path()});
        settings.budget.paths.push_back({.capacity = 1 * GiB});
        settings.budget.placement = {share(random), share(random), share(random), share(random)};
      }
      const bool queued = random() % 2 == 0;
      expect_same(expected, train(description, settings, queued), text("round ", round, " placement ", placement));
    }
  }
}

/// A layer with a tensor of each kind, and the values that were stored in each.
struct Layer {
  explicit Layer(std::uint64_t micro_batches) {
    description.compute_dtype = ComputeType::fp32;
    description.blocks = {{"layer",
                           state::BlockRole::layer,
                           {{.name = "w", .shape = {40, 64}},
                            {.name = "fixed", .shape = {33}, .training = state::Training::frozen},
                            {.name = "gate", .shape = {50, 9}, .form = state::Form::fp32},
                            {.name = "bias", .shape = {77}}}}};
    description.hidden_size = 64;
    description.tokens = 8;
    description.micro_batches = micro_batches;
  }

  static std::vector<float> normal(std::size_t n, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> draw(0, 0.1F);
    std::vector<float> out(n);
    for (auto& value : out) value = draw(random);
    return out;
  }

  plan::Description description;
};

TEST(WidenedPasses, FindTheWeightsAsFp32) {
  const Layer layer(1);
  Engine engine(layer.description, everything_in_dram());
  engine.start();
  const auto& tensors = engine.layout().tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) engine.store_tensor(t, 0, Layer::normal(tensors[t].elements, t));
  engine.begin_step({.counts = {8}, .training = false});
  const auto pass = engine.next_pass();
  ASSERT_TRUE(pass);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto* found = reinterpret_cast<const float*>(pass->weights) + engine.tensor_offset(t);
    const auto stored = Layer::normal(tensors[t].elements, t);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const auto narrow = to_float(to_bf16(stored[i]));
      // What is frozen is rounded as the checkpoint has it, to nearest even: one unit of the last place apart at most.
      const bool wide = tensors[t].spec.form == state::Form::fp32;
      const float apart = wide ? 0 : state::is_trainable(tensors[t].spec.training) ? 0 : std::abs(narrow) / 128;
      ASSERT_NEAR(found[i], wide ? stored[i] : narrow, apart) << tensors[t].spec.name << ' ' << i;
    }
  }
  engine.end_pass();
}

/// So that the norm, which is of gradients as they are kept, is that of sums rounded once.
TEST(WidenedPasses, GradientsAreSummedInFp32AndRoundedOnce) {
  for (const std::uint64_t micro_batches : {1U, 3U}) {
    const Layer layer(micro_batches);
    Engine engine(layer.description, everything_in_dram());
    engine.start();
    const auto& tensors = engine.layout().tensors();
    engine.begin_step({.counts = std::vector<std::uint64_t>(micro_batches, 2)});
    double expected = 0;
    while (const auto pass = engine.next_pass()) {
      for (std::size_t t = 0; pass->kind == plan::PassKind::backward && t < tensors.size(); ++t) {
        if (!state::is_trainable(tensors[t].spec.training)) continue;
        std::vector<float> sum(tensors[t].elements, 0);
        for (std::uint64_t m = 0; m < micro_batches; ++m) {
          const auto given = Layer::normal(sum.size(), 100 * t + m);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += given[i];
          engine.gradient(t, reinterpret_cast<const std::byte*>(given.data()), m);
        }
        for (const auto value : sum) {
          const auto bits = std::bit_cast<std::uint32_t>(value);
          const auto even = static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
          const double kept = tensors[t].spec.form == state::Form::fp32 ? value : to_float(even);
          expected += kept * kept;
        }
      }
      engine.end_pass();
    }
    EXPECT_NEAR(engine.end_step({}).grad_norm, std::sqrt(expected), 1e-6 * std::sqrt(expected));
  }
}

TEST(WidenedPasses, MoveNoOtherBytesThanActivations) {
  Shape shape{.layers = 4, .tokens = 32};
  const Directory directory;
  const auto settings = DurableRun::settings(directory.path(), 1, {0, 0, 0, 0}, Durability::none);
  const auto plan_of = [&] { return Engine(describe(shape), settings).plan(); };
  const auto narrow = plan_of();
  shape.compute = ComputeType::fp32;
  const auto wide = plan_of();
  const auto boundaries = static_cast<Bytes>(shape.layers + 1);  // the norm has a block of its own
  const auto more = boundaries * 32 * static_cast<Bytes>(shape.hidden) * 2;
  EXPECT_EQ(wide.read_per_step, narrow.read_per_step + more);
  EXPECT_EQ(wide.written_per_step, narrow.written_per_step + more);
}

TEST(WidenedPasses, NothingIsComputedInLessThanItIsKeptIn) {
  try {
    const Engine engine(describe({.type = ComputeType::fp32, .compute = ComputeType::bf16}), everything_in_dram());
    FAIL() << "planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("weight_dtype"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway
