#include "spillway/state/checkpoint.h"

#include <cstring>

#include "tests/state/stored_model.h"

namespace spillway::state {
namespace {

TEST(LoadWeights, StartsExactlyFromFp32) {
  TempDir dir;
  const auto data = write_model(dir.path(), small_model(), "F32", 4, 20'000);
  for (const auto type : {kBf16, kFp32}) {
    Model model(small_model(), type);
    load_weights(model.stream(), SafetensorsReader(dir.path()));
    for (const auto& [name, bytes] : data) {
      EXPECT_EQ(model.masters(name), bytes) << name;
      EXPECT_TRUE(all_zero(model.exp_avg(name)) && all_zero(model.exp_avg_sq(name))) << name;
    }
    if (type == kBf16) {
      EXPECT_FALSE(all_zero(model.remainder("layer.w")));
    }
    expect_padding_is_zero(model);
  }
}

TEST(LoadWeights, StartsExactlyFromBf16WithNoRemainder) {
  TempDir dir;
  const auto data = write_model(dir.path(), small_model(), "BF16", 2);
  Model model(small_model(), kBf16);
  load_weights(model.stream(), SafetensorsReader(dir.path()));
  for (const auto& [name, bytes] : data) {
    EXPECT_TRUE(all_zero(model.remainder(name))) << name;
    const auto masters = model.masters(name);
    for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
      ASSERT_EQ(masters.substr(4 * i, 4), std::string(2, '\0') + bytes.substr(2 * i, 2));
    }
  }
  expect_padding_is_zero(model);
}

TEST(LoadWeights, StartsExactlyFromFp16) {
  TempDir dir;
  write_model(dir.path(), small_model(), "F16", 2);
  const SafetensorsReader reader(dir.path());
  Model bf16(small_model(), kBf16), fp32(small_model(), kFp32);
  load_weights(bf16.stream(), reader);
  load_weights(fp32.stream(), reader);
  for (const auto& [name, tensor] : reader.tensors()) {
    std::vector<float> values(tensor.elements);
    reader.read_fp32(tensor, 0, tensor.elements, values.data());
    EXPECT_EQ(bf16.masters(name), raw(values)) << name;
    EXPECT_EQ(fp32.masters(name), raw(values)) << name;
  }
  EXPECT_FALSE(all_zero(bf16.remainder("layer.w"))) << "fp16 has bits that bf16 lacks";
}

TEST(LoadWeights, FindsTensorsUnderOtherNames) {
  TempDir dir;
  const std::vector<BlockSpec> stored{{"layer", BlockRole::layer, {{"old.w", {70, 100}}, {"extra", {3}}}}};
  const std::vector<BlockSpec> wanted{{"layer", BlockRole::layer, {{"new.w", {70, 100}}}}};
  const auto data = write_model(dir.path(), stored, "F32", 4);
  Model model(wanted, kFp32);
  load_weights(model.stream(), SafetensorsReader(dir.path()), {{"new.w", "old.w"}});
  EXPECT_EQ(model.masters("new.w"), data.at("old.w"));
}

TEST(LoadWeights, WhatDoesNotFitIsNamedAndNothingIsStored) {
  TempDir dir;
  const auto file = (dir / "model.safetensors").string();
  const auto refused = [&](const std::vector<BlockSpec>& stored, const std::string& dtype, Bytes unit,
                           std::vector<std::string> parts) {
    write_model(dir.path(), stored, dtype, unit);
    Model model(small_model(), kBf16);
    parts.push_back(file);
    expect_error(ErrorCode::bad_input, parts, [&] { load_weights(model.stream(), SafetensorsReader(dir.path())); });
    EXPECT_EQ(model.store.stored, 0);
  };
  auto other = small_model();
  other[1].tensors[0].shape = {100, 70};
  refused(other, "BF16", 2, {"tensor layer.w", "[100, 70]", "[70, 100]"});
  other = small_model();
  other[1].tensors[2].shape = {1};
  refused(other, "BF16", 2, {"tensor layer.scale", "[1]", "[]"});
  other = small_model();
  other[2].tensors[0].name = "model.head.weight";
  refused(other, "BF16", 2, {"no tensor head.weight", "it has model.head.weight"});
  refused(small_model(), "I64", 8, {"tensor embed.weight", "I64", "BF16"});
}

TEST(LoadWeights, AWeightThatIsNotFiniteIsNamed) {
  struct Case {
    const char* dtype;
    Bytes unit;
    std::string bits;
    const char* words;
  };
  const std::vector<Case> cases{
      {"BF16", 2, raw<std::uint16_t>({0x7FC0}), "NaN"},     {"BF16", 2, raw<std::uint16_t>({0xFF80}), "-infinity"},
      {"F16", 2, raw<std::uint16_t>({0x7C00}), "infinity"}, {"F16", 2, raw<std::uint16_t>({0xFE01}), "NaN"},
      {"F32", 4, raw<std::uint32_t>({0x7FFFFFFF}), "NaN"},  {"F64", 8, raw<double>({1e300}), "infinity"}};
  for (const auto& [dtype, unit, bits, words] : cases) {
    for (const auto training : {Training::full, Training::frozen}) {
      TempDir dir;
      auto blocks = small_model();
      for (auto& block : blocks) {
        for (auto& tensor : block.tensors) tensor.training = training;
      }
      write_model(dir.path(), blocks, dtype, unit);
      put_value(dir.path(), "layer.w", 6'905, bits);
      Model model(blocks, kBf16);
      expect_error(ErrorCode::bad_input, {"tensor layer.w", "model.safetensors", words, "[69, 5]"},
                   [&] { load_weights(model.stream(), SafetensorsReader(dir.path())); });
    }
  }
  TempDir dir;
  write_model(dir.path(), small_model(), "F32", 4);
  put_value(dir.path(), "layer.w", 100, raw<float>({-70'000}));
  Model fp16(small_model(), ComputeType::fp16), fp32(small_model(), kFp32);
  load_weights(fp32.stream(), SafetensorsReader(dir.path()));
  expect_error(ErrorCode::bad_input, {"tensor layer.w", "-70000", "[1, 0]", "weight_dtype"},
               [&] { load_weights(fp16.stream(), SafetensorsReader(dir.path())); });
}

TEST(SaveWeights, WritesTheBitsOfTheWeightsInShards) {
  for (const auto type : {kBf16, kFp32}) {
    TempDir dir;
    Model model(small_model(), type);
    randomise(model, 4);
    save_weights(model.stream(), dir.path(), {.max_shard = 30'000, .names = {{"head.weight", "lm_head.weight"}}});
    EXPECT_TRUE(file_names(dir.path()).contains("model.safetensors.index.json"));
    const SafetensorsReader reader(dir.path());
    ASSERT_EQ(reader.tensors().size(), 5U);
    for (const auto& tensor : model.layout.tensors()) {
      const auto name = tensor.spec.name == "head.weight" ? "lm_head.weight" : tensor.spec.name;
      const auto* stored = reader.find(name);
      ASSERT_NE(stored, nullptr) << name;
      EXPECT_EQ(stored->dtype, type == kBf16 ? "BF16" : "F32");
      EXPECT_EQ(stored->shape, tensor.spec.shape);
      const auto bits =
          type == kBf16
              ? model.field<std::uint16_t>(
                    tensor.spec.name, [](const ChunkFields& f) { return reinterpret_cast<std::uint16_t*>(f.weight); })
              : model.masters(tensor.spec.name);
      EXPECT_EQ(read_file(dir.path())[name], bits);
    }
  }
}

TEST(SaveWeights, WhatIsKeptInFp32IsSavedSoAndHasNoRemainder) {
  TempDir dir;
  Model model(small_mixed_model(), kBf16);
  randomise(model, 8);
  save_weights(model.stream(), dir.path());
  save_state(model.stream(), dir / "spillway");
  const SafetensorsReader weights(dir.path()), remainders(dir / "spillway/residual.safetensors");
  EXPECT_EQ(weights.find("layer.gate")->dtype, "F32");
  EXPECT_EQ(weights.find("layer.w")->dtype, "BF16");
  EXPECT_EQ(remainders.find("layer.gate"), nullptr);
  EXPECT_NE(remainders.find("layer.w"), nullptr);
  std::string stored(60 * 100 * 4, '\0');
  weights.read(*weights.find("layer.gate"), 0, 6000, reinterpret_cast<std::byte*>(stored.data()));
  EXPECT_EQ(stored, model.masters("layer.gate"));
  // A run that keeps none of them so says which tensor differs.
  auto narrow = small_mixed_model();
  for (auto& tensor : narrow[1].tensors) tensor.form = Form::as_run;
  Model other(narrow, kBf16);
  expect_error(ErrorCode::bad_input, {"layer.gate", "F32", "BF16"},
               [&] { load_state(other.stream(), dir / "spillway", dir.path()); });
}

TEST(ChunkStream, TooLittleScratchIsAFaultOfTheCaller) {
  TempDir dir;
  Model model(small_model(), kBf16);
  model.scratch.pop_back();
  expect_error(ErrorCode::internal, {"scratch"}, [&] { save_state(model.stream(), dir / "spillway"); });
  expect_error(ErrorCode::internal, {"scratch"}, [&] { save_weights(model.stream(), dir.path()); });
  EXPECT_TRUE(file_names(dir.path()).empty());
}

TEST(ChunkStream, AnErrorOfTheStorePassesAndLeavesNoFile) {
  class Broken final : public ChunkStore {
    void load(std::size_t, std::byte*, std::byte*) override { throw Error(ErrorCode::corrupt, "bad chunk"); }
    void store(std::size_t, const std::byte*, const std::byte*) override {}
  };
  TempDir dir;
  Model model(small_model(), kBf16);
  Broken broken;
  const ChunkStream stream{model.layout, model.rule, broken, model.scratch};
  expect_error(ErrorCode::corrupt, {"bad chunk"}, [&] { save_weights(stream, dir.path()); });
  expect_error(ErrorCode::corrupt, {"bad chunk"}, [&] { save_state(stream, dir / "spillway"); });
  EXPECT_EQ(file_names(dir.path()), std::set<std::string>{"spillway"});
  EXPECT_TRUE(file_names(dir / "spillway").empty());
}

}  // namespace
}  // namespace spillway::state
