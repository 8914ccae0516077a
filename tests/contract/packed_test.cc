// Frozen weights of 4 and 8 bits: passes find what their codes stand for, and no bit depends on where they lie.
#include "spillway/kernels/packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spillway/plan/conversion.h"
#include "spillway/state/safetensors.h"
#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using state::ComputeType;
using state::Form;
using test::Directory;
using test::DurableRun;

plan::test::Shape random_packed_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  const std::vector<std::string> frozen{"up|down|embed|head", "layers|embed", "down", "^layers\\.0", "up|norm"};
  out.frozen = frozen[random() % frozen.size()];
  out.packed = random() % 2 == 0 ? "up|down" : "down";
  constexpr std::array kPackedForms{Form::nf4, Form::int8, Form::nf4_nested};
  out.packed_as = kPackedForms[random() % kPackedForms.size()];
  if (random() % 3 == 0) out.fp32 = "norm";
  if (random() % 3 == 0) out.compute = ComputeType::fp32;
  if (random() % 4 == 0) out.type = ComputeType::fp32;
  out.format = static_cast<state::StateFormat>(round % 3);
  return out;
}

/// Beside experts that are placed apart.
plan::test::Shape random_shape_of_experts(std::mt19937& random, int round) {
  auto out = random_packed_shape(random, round);
  out.experts = 2 + static_cast<std::int64_t>(random() % 4);
  if (random() % 3 > 0) out.asked = 0.5;
  out.uneven = out.asked < 1 && random() % 2 == 0;
  if (out.packed_as == Form::nf4_nested) out.packed_as = Form::nf4;
  return out;
}

class Packed : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, Packed, test::kEveryDurability, test::durability_name);

TEST_P(Packed, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(61, spillway::testing::few_or(4, 6), 10, GetParam(), random_packed_shape);
}

TEST_P(Packed, PlacingExpertsApartAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(71, spillway::testing::few_or(3, 6), 10, GetParam(), random_shape_of_experts);
}

Outcome packed_run(const plan::Description& description, Settings settings, bool queued) {
  test::Training training(description, std::move(settings), queued);
  Outcome out;
  for (std::uint64_t s = 0; s < 5; ++s) out.norms.push_back(training.toy.step(s).grad_norm);
  out.masters = training.toy.masters();
  return out;
}

TEST(PackedWeights, ADeviceChangesNoBit) {
  std::mt19937 random(67);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < 8; ++round) {
    const auto description = describe((round % 2 == 0 ? random_packed_shape : random_shape_of_experts)(random, round));
    const auto expected = packed_run(description, everything_in_dram(), false);
    for (int placement = 0; placement < 2; ++placement) {
      auto settings = test::with_device({.capacity = 1 * GiB}, random());
      settings.budget.device->coalesce_to = random() % (48 * KiB);
      if (placement > 0) settings.budget.device->weight = share(random);
      settings.piece_period = 2;
      const bool queued = random() % 2 == 0;
      expect_same(expected, packed_run(description, settings, queued), text("round ", round, " with ", placement));
    }
  }
}

/// A layer that has packed matrices of sizes that are no multiple of a block, and what is trainable beside them.
plan::Description packed_layer(Form form, ComputeType type, std::optional<ComputeType> compute) {
  plan::Description out;
  out.weight_dtype = type;
  out.compute_dtype = compute;
  out.blocks = {{"layer",
                 state::BlockRole::layer,
                 {{.name = "adapter", .shape = {8, 64}},
                  {.name = "small", .shape = {7, 9}, .training = state::Training::frozen, .form = form},
                  {.name = "norm", .shape = {33}, .training = state::Training::frozen},
                  {.name = "gate", .shape = {5, 9}, .training = state::Training::frozen, .form = Form::fp32},
                  {.name = "large", .shape = {601, 503}, .training = state::Training::frozen, .form = form}}}};
  out.hidden_size = 64;
  out.tokens = 8;
  out.chunk_elements = 1 << 14;
  return out;
}

std::vector<float> some_weights(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(0, 0.02F);
  std::vector<float> out(n);
  for (auto& value : out) value = draw(random);
  return out;
}

/// The whole tensor by itself, packed and unpacked: where chunks end does not show.
std::vector<float> packed_and_back(const std::vector<float>& values, Form form, ComputeType type) {
  const auto encoding = state::encoding_of(form, type);
  const auto n = round_up(values.size(), kernels::group_values(encoding));
  std::vector<std::byte> packed(kernels::encoded_bytes(encoding, n));
  kernels::ScaleMean mean;
  mean.add(values.data(), values.size());
  kernels::pack(encoding, values.data(), packed.data(), n, 0, values.size(), mean.mean());
  std::vector<float> out(values.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = kernels::scalar::packed_value(encoding, packed.data(), n, i);
  return out;
}

void expect_found(const Engine& engine, const BlockPass& pass, const plan::Description& description, std::size_t t,
                  const std::vector<float>& expected) {
  const auto unit = state::field_bytes(description.computes()).weight;
  const auto* const at = pass.weights + engine.tensor_offset(t) * unit;
  const bool in_fp32 = engine.layout().tensors()[t].spec.form == Form::fp32 || unit == 4;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (in_fp32) {
      ASSERT_EQ(reinterpret_cast<const float*>(at)[i], expected[i]) << t << ", " << i;
    } else {
      ASSERT_EQ(reinterpret_cast<const std::uint16_t*>(at)[i], kernels::round_bf16(expected[i])) << t << ", " << i;
    }
  }
}

TEST(PackedWeights, PassesFindWhatTheirCodesStandFor) {
  for (const auto form : {Form::nf4, Form::int8, Form::nf4_nested}) {
    for (const auto& [type, compute] : {std::pair(ComputeType::bf16, std::optional<ComputeType>()),
                                        std::pair(ComputeType::bf16, std::optional(ComputeType::fp32)),
                                        std::pair(ComputeType::fp32, std::optional<ComputeType>())}) {
      const auto description = packed_layer(form, type, compute);
      for (const double share : {0.0, 1.0}) {
        const Directory where;
        Engine engine(description, DurableRun::settings(where.path(), 1, {share, share, share, share}));
        engine.start();
        const auto& tensors = engine.layout().tensors();
        std::vector<std::vector<float>> stored;
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          stored.push_back(some_weights(tensors[t].elements, t));
          engine.store_tensor(t, 0, stored.back());
        }
        for (const std::size_t t : {1, 4}) {
          std::vector<float> found(stored[t].size());
          engine.fetch_tensor(t, 0, found);
          stored[t] = packed_and_back(stored[t], form, type);
          ASSERT_EQ(found, stored[t]);
        }
        engine.begin_step({.counts = {8}, .training = false});
        std::size_t passes = 0;
        while (const auto pass = engine.next_pass()) {
          for (const std::size_t t : {1, 3, 4}) {
            const bool fp32 = tensors[t].spec.form == Form::fp32 || state::is_packed(tensors[t].spec.form);
            if (fp32 || type == ComputeType::fp32) expect_found(engine, *pass, description, t, stored[t]);
          }
          engine.end_pass();
          ++passes;
        }
        engine.end_step({});
        EXPECT_EQ(passes, 1U);
      }
    }
  }
}

/// Experts over several chunks, beside what is converted before a pass begins.
plan::Description layer_of_experts(Form form, std::optional<ComputeType> compute, std::uint64_t pieces) {
  plan::Description out;
  out.weight_dtype = ComputeType::bf16;
  out.compute_dtype = compute;
  const auto frozen = [&](const char* name, std::vector<std::int64_t> shape) {
    return state::TensorSpec{
        .name = name, .shape = std::move(shape), .training = state::Training::frozen, .form = form};
  };
  auto experts = frozen("experts", {9, 80, 96});
  experts.pieces = pieces;
  out.blocks = {{"layer",
                 state::BlockRole::layer,
                 {{.name = "adapter", .shape = {8, 64}}, frozen("before", {7, 9}), experts, frozen("after", {31, 9})}}};
  out.hidden_size = 64;
  out.tokens = 8;
  out.chunk_elements = 1 << 14;
  return out;
}

TEST(PackedWeights, PiecesAreWhatTheirCodesStandFor) {
  constexpr std::size_t kExperts = 2;
  for (const auto form : {Form::nf4, Form::int8, Form::nf4_nested}) {
    for (const auto compute : {std::optional<ComputeType>(), std::optional(ComputeType::fp32)}) {
      const auto description = layer_of_experts(form, compute, 9);
      const Directory where;
      Engine engine(description, DurableRun::settings(where.path(), 1, {1, 1, 1, 1}));
      engine.start();
      const auto& tensors = engine.layout().tensors();
      std::vector<std::vector<float>> stored;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        stored.push_back(some_weights(tensors[t].elements, t));
        engine.store_tensor(t, 0, stored.back());
        engine.fetch_tensor(t, 0, stored.back());
      }
      const auto piece = tensors[kExperts].piece();
      engine.begin_step({.counts = {8}, .training = false});
      const auto pass = engine.next_pass();
      ASSERT_TRUE(pass);
      for (const std::uint64_t count : {1, 3, 4}) {
        for (std::uint64_t first = 0; first + count <= 9; ++first) {
          engine.convert_pieces(kExperts, first, count);
          const auto from = stored[kExperts].begin() + static_cast<std::ptrdiff_t>(first * piece);
          expect_found(engine, *pass, description, kExperts, {from, from + static_cast<std::ptrdiff_t>(count * piece)});
        }
      }
      for (const std::size_t t : {1, 3}) expect_found(engine, *pass, description, t, stored[t]);
      EXPECT_THROW(engine.convert_pieces(kExperts, 6, 4), Error) << "there are nine";
      EXPECT_THROW(engine.convert_pieces(kExperts, 0, 5), Error) << "there is room for four";
      EXPECT_THROW(engine.convert_pieces(1, 0, 1), Error) << "it has no pieces";
      engine.end_pass();
      EXPECT_THROW(engine.convert_pieces(kExperts, 0, 1), Error) << "no pass is open";
      while (engine.next_pass()) engine.end_pass();
      engine.end_step({});
    }
  }
}

TEST(PackedWeights, PiecesTakeThePlaceOfFourOfThem) {
  const auto bytes = [](std::uint64_t pieces) {
    const auto description = layer_of_experts(Form::nf4, std::nullopt, pieces);
    const auto layout = description.layout();
    return plan::converted_bytes(description, layout, plan::Pass{.kind = plan::PassKind::forward, .block = 0});
  };
  const Bytes piece = Bytes{80} * 96 * 2;
  EXPECT_GE(bytes(0), 9 * piece);
  EXPECT_GE(bytes(9), 4 * piece);
  EXPECT_LE(bytes(9), 4 * piece + 12 * KiB) << "the adapter, and the small tensors to whole chunks";
}

/// A layer of adapters and twenty experts of 36 KiB, with everything on a path.
class AskedExperts : public ::testing::Test {
 protected:
  explicit AskedExperts(double asked = 0.5) : description_(describe(asked)) {
    engine_ = std::make_unique<Engine>(description_, DurableRun::settings(where_.path(), 1, {0, 0, 0, 0}));
    engine_->start();
    toy_ = std::make_unique<test::Toy>(*engine_, description_, 1);
    toy_->fill();
  }

  static plan::Description describe(double asked) {
    return plan::test::describe(
        {.layers = 2, .embedding = false, .head = false, .micro_batches = 1, .experts = 20, .asked = asked});
  }

  [[nodiscard]] Bytes read() const { return engine_->counters().paths.at("path:0").read; }

  const plan::Description description_;
  const Directory where_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<test::Toy> toy_;
};

class AllExperts : public AskedExperts {
 protected:
  AllExperts() : AskedExperts(1) {}
};

TEST_F(AskedExperts, OnlyTheseAreRead) {
  const auto& layout = engine_->layout();
  Bytes all = 0, asked = 0;
  for (std::uint64_t s = 0; s < 4; ++s) {
    const auto before = read();
    toy_->look = [&](const BlockPass& pass) {
      const auto& block = layout.blocks()[pass.block];
      for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
        for (std::uint64_t i = 0; i < layout.tensors()[t].spec.pieces; ++i) {
          all += kernels::encoded_bytes(kernels::Encoding::nf4, layout.tensors()[t].piece());
        }
      }
    };
    toy_->step(s);
    asked += read() - before;
  }
  EXPECT_LT(asked, all * 3 / 4);
  EXPECT_GT(asked, all / 4);
}

TEST_F(AskedExperts, AreCountedInTrainingSteps) {
  const auto count = [&] { return engine_->counters().pieces.value(); };
  toy_->step(0);
  const auto once = count();
  ASSERT_EQ(once.size(), 2U) << "layers";
  EXPECT_EQ(once[0].block, engine_->layout().blocks()[0].name);
  for (const auto& layer : once) {
    EXPECT_GT(layer.asked, 0U);
    EXPECT_LT(layer.asked, layer.pieces);
  }
  toy_->step(0);
  EXPECT_EQ(count()[0].pieces, 2 * once[0].pieces);
  EXPECT_EQ(count()[0].asked, 2 * once[0].asked) << "the same step again";
  toy_->step(1, false);
  EXPECT_EQ(count()[0].asked, 2 * once[0].asked);
}

TEST_F(AskedExperts, ABackwardPassFindsWhatItsForwardPassAskedFor) {
  const auto t = std::ranges::find_if(engine_->layout().tensors(), [](const auto& it) { return it.spec.pieces > 0; }) -
                 engine_->layout().tensors().begin();
  const auto tensor = static_cast<std::size_t>(t);
  engine_->begin_step({.counts = {32}});
  std::size_t backward = 0;
  while (const auto pass = engine_->next_pass()) {
    const bool of_it = pass->block == engine_->layout().tensors()[tensor].block;
    if (of_it && pass->kind == plan::PassKind::forward) engine_->ask_pieces(tensor, 3, 1);
    if (of_it && pass->kind == plan::PassKind::backward) {
      engine_->convert_pieces(tensor, 3, 1);
      EXPECT_THROW(engine_->convert_pieces(tensor, 4, 1), Error);
      EXPECT_THROW(engine_->ask_pieces(tensor, 20, 1), Error) << "there are twenty";
      ++backward;
    }
    if (backward > 0) break;
    engine_->end_pass();
  }
  EXPECT_EQ(backward, 1U);
}

TEST_F(AllExperts, ThatNobodyHasToAskForAreReadWhole) {
  Bytes experts = 0;
  for (const auto& it : engine_->layout().tensors()) {
    if (it.spec.pieces > 0) experts += kernels::encoded_bytes(kernels::Encoding::nf4, it.elements);
  }
  toy_->step(0);
  const auto before = read();
  toy_->step(1);
  EXPECT_GE(read() - before, 2 * experts);
}

TEST(PackedWeights, PiecesAreOfCodesOrOfTheRunsTypeAndWholeBlocks) {
  EXPECT_THROW(static_cast<void>(layer_of_experts(Form::nf4, std::nullopt, 7).layout()), Error);
  EXPECT_THROW(static_cast<void>(layer_of_experts(Form::nf4, std::nullopt, 9 * 80 * 96).layout()), Error);
  EXPECT_THROW(static_cast<void>(layer_of_experts(Form::as_run, std::nullopt, 7).layout()), Error);
  EXPECT_THROW(static_cast<void>(layer_of_experts(Form::fp32, std::nullopt, 9).layout()), Error);
  EXPECT_NO_THROW(static_cast<void>(layer_of_experts(Form::as_run, std::nullopt, 9).layout()));
}

TEST(PackedWeights, TakeAQuarterOrHalfOfWhatBf16Takes) {
  const auto bytes = [](Form form) {
    const auto description = packed_layer(form, ComputeType::bf16, std::nullopt);
    const auto layout = description.layout();
    Bytes out = 0;
    for (const auto& chunk : layout.chunks()) {
      if (chunk.training == state::Training::frozen) out += weight_bytes(description.rule(), chunk);
    }
    return static_cast<double>(out);
  };
  const auto whole = bytes(Form::as_run);
  EXPECT_NEAR(bytes(Form::nf4) / whole, 36.0 / 128, 0.03);
  EXPECT_NEAR(bytes(Form::int8) / whole, 68.0 / 128, 0.03);
  EXPECT_NEAR(bytes(Form::nf4_nested) / whole, 33.0 / 128, 0.06);
}

/// Three chunks' worth of one tensor beside a small one, stored in pieces and whole.
TEST(PackedWeights, NestedScalesAreThoseOfTheTensorWhereverItsChunksEnd) {
  plan::Description description;
  description.weight_dtype = ComputeType::bf16;
  const auto frozen = [](const char* name, std::int64_t rows) {
    return state::TensorSpec{
        .name = name, .shape = {rows, 1024}, .training = state::Training::frozen, .form = Form::nf4_nested};
  };
  description.blocks = {{"layer",
                         state::BlockRole::layer,
                         {{.name = "adapter", .shape = {8, 64}}, frozen("small", 3), frozen("large", 17000)}}};
  description.hidden_size = 64;
  description.tokens = 8;
  description.chunk_elements = 1 << 14;
  const Directory where;
  Engine engine(description, DurableRun::settings(where.path(), 1, {0.5, 0.5, 0.5, 0.5}));
  engine.start();
  EXPECT_GT(engine.layout().chunks().size(), 3U);
  const auto small = some_weights(3 * 1024, 1), large = some_weights(17000 * 1024, 2);
  engine.store_tensor(1, 0, small);
  constexpr std::size_t kPiece = 1 << 20;
  const auto pieces = [&](const auto& call) {
    for (std::size_t first = 0; first < large.size(); first += kPiece) {
      call(first, std::span(large).subspan(first, std::min(kPiece, large.size() - first)));
    }
  };
  try {
    engine.store_tensor(2, 0, std::span(large).first(kPiece));
    FAIL() << "the mean is that of all values";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
  }
  pieces([&](std::size_t first, std::span<const float> values) { engine.measure_tensor(2, first, values); });
  pieces([&](std::size_t first, std::span<const float> values) { engine.store_tensor(2, first, values); });
  std::vector<float> found(large.size());
  engine.fetch_tensor(2, 0, found);
  ASSERT_TRUE(found == packed_and_back(large, Form::nf4_nested, ComputeType::bf16));
  found.resize(small.size());
  engine.fetch_tensor(1, 0, found);
  ASSERT_TRUE(found == packed_and_back(small, Form::nf4_nested, ComputeType::bf16));
}

TEST(PackedWeights, AreOfFrozenTensorsInsideLayersAlone) {
  auto description = packed_layer(Form::nf4, ComputeType::bf16, std::nullopt);
  description.blocks[0].tensors[1].training = state::Training::full;
  EXPECT_THROW(static_cast<void>(description.layout()), Error);
  description = packed_layer(Form::as_run, ComputeType::bf16, std::nullopt);
  description.blocks.push_back(
      {"head",
       state::BlockRole::head,
       {{.name = "head", .shape = {100, 64}, .training = state::Training::frozen, .form = Form::int8}}});
  EXPECT_THROW(static_cast<void>(description.layout()), Error);
}

TEST(PackedWeights, VolumesOfARunWithOthersAreRefused) {
  const auto shape = [](Form form) {
    return plan::test::Shape{.layers = 1, .tokens = 32, .frozen = "up|down", .packed = "up|down", .packed_as = form};
  };
  const DurableRun run(shape(Form::nf4), 1);
  const Directory where;
  const auto settings = DurableRun::settings(where.path(), 1, {0, 0, 0, 0});
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 1);
  }
  const auto other = describe(shape(Form::int8));
  Engine engine(other, settings);
  EXPECT_THROW(engine.start({.reopen = true}), Error);
}

/// Files hold what layers multiply by; a state of such a run goes on, its packed weights from where they came.
TEST(PackedWeights, AreSavedAsLayersMultiplyByThem) {
  const DurableRun run({.layers = 2, .tokens = 32, .frozen = "up|down", .packed = "up|down"}, 4);
  const Directory out;
  Settings settings;
  settings.budget.dram = 4 * GiB;
  std::map<std::string, std::string> trainable;
  for (const auto& block : run.description().blocks) {
    for (const auto& tensor : block.tensors) {
      if (!state::is_trainable(tensor.training)) trainable[tensor.name] = "";
    }
  }
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 2);
    engine.save_weights(out.path(), 1 * GiB);
    engine.save_state(out.path() / "state");
    const state::SafetensorsReader reader(out.path());
    const auto* const stored = reader.find("layers.1.up");
    ASSERT_NE(stored, nullptr);
    EXPECT_EQ(stored->dtype, "BF16");
    std::vector<float> saved(stored->elements), kept(stored->elements);
    reader.read_fp32(*stored, 0, saved.size(), saved.data());
    const auto& tensors = engine.layout().tensors();
    const auto number = std::ranges::find(tensors, "layers.1.up", [](const auto& it) { return it.spec.name; });
    engine.fetch_tensor(static_cast<std::size_t>(number - tensors.begin()), 0, kept);
    for (std::size_t i = 0; i < saved.size(); ++i) {
      ASSERT_EQ(saved[i], kernels::widen(kernels::round_bf16(kept[i]))) << i;
    }
  }
  Engine engine(run.description(), settings);
  engine.start();
  run.fill(engine);
  EXPECT_THROW(engine.load_state(out.path() / "state", out.path(), 2), Error);
  engine.load_state(out.path() / "state", out.path(), 2, trainable);
  EXPECT_TRUE(run.holds(engine, 2));
  run.train(engine, 3, 4);
  EXPECT_TRUE(run.holds(engine, 4));
}

}  // namespace
}  // namespace spillway
