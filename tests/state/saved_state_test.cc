#include "spillway/state/saved_state.h"

#include <cmath>
#include <cstring>

#include "spillway/kernels/moments.h"
#include "spillway/state/digests.h"
#include "tests/state/stored_model.h"

namespace spillway::state {
namespace {

TEST(LoadState, AWeightThatIsNotFiniteIsNamed) {
  TempDir dir;
  Model model(small_model(), kBf16);
  randomise(model, 4);
  save_weights(model.stream(), dir.path());
  save_state(model.stream(), dir / "spillway");
  put_value(dir.path(), "embed.weight", 3, raw<std::uint16_t>({0x7F80}));
  expect_error(ErrorCode::bad_input, {"tensor embed.weight", "infinity"},
               [&] { load_state(model.stream(), dir / "spillway", dir.path()); });
}

TEST(LoadState, EveryFileIsVerifiedWhileItIsRead) {
  for (const std::string name : {"model", "spillway/residual", "spillway/exp_avg", "spillway/exp_avg_sq"}) {
    TempDir dir;
    Model model(small_model(), kBf16);
    randomise(model, 5);
    save_weights(model.stream(), dir.path());
    save_state(model.stream(), dir / "spillway");
    const auto file = dir / (name + ".safetensors");
    auto content = get(file);
    content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
    put(file, content);
    expect_error(ErrorCode::bad_input, {name + ".safetensors is damaged", "tensor ", "bytes "},
                 [&] { load_state(model.stream(), dir / "spillway", dir.path()); });
  }
}

TEST(SaveState, HoldsTheFieldsByTensor) {
  TempDir dir;
  Model model(small_model(), kBf16);
  randomise(model, 4);
  save_state(model.stream(), dir / "spillway");
  EXPECT_EQ(file_names(dir / "spillway"),
            (std::set<std::string>{"residual.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors"}));
  const auto remainder = read_file(dir / "spillway/residual.safetensors");
  const auto exp_avg = read_file(dir / "spillway/exp_avg.safetensors");
  const auto exp_avg_sq = read_file(dir / "spillway/exp_avg_sq.safetensors");
  ASSERT_EQ(remainder.size(), 5U);
  for (const auto& tensor : model.layout.tensors()) {
    const auto& name = tensor.spec.name;
    EXPECT_EQ(remainder.at(name), model.remainder(name));
    EXPECT_EQ(exp_avg.at(name), model.exp_avg(name));
    EXPECT_EQ(exp_avg_sq.at(name), model.exp_avg_sq(name));
  }
  const SafetensorsReader reader(dir / "spillway/residual.safetensors");
  EXPECT_EQ(reader.find("layer.w")->dtype, "U16");
  EXPECT_EQ(reader.find("layer.w")->shape, (std::vector<std::int64_t>{70, 100}));
}

TEST(LoadState, GivesBackEveryBitWhateverTheChunks) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 10; ++round) {
    const auto type = round % 2 == 0 ? kBf16 : kFp32;
    TempDir dir;
    Model saved(small_model(), type, 1 + random() % 10'000);
    randomise(saved, random());
    save_weights(saved.stream(), dir.path(), {.max_shard = 1 + random() % 60'000});
    save_state(saved.stream(), dir / "spillway");
    Model loaded(small_model(), type, 1 + random() % 10'000);
    load_state(loaded.stream(), dir / "spillway", dir.path());
    for (const auto& tensor : saved.layout.tensors()) {
      const auto& name = tensor.spec.name;
      ASSERT_EQ(loaded.masters(name), saved.masters(name)) << name;
      ASSERT_EQ(loaded.exp_avg(name), saved.exp_avg(name)) << name;
      ASSERT_EQ(loaded.exp_avg_sq(name), saved.exp_avg_sq(name)) << name;
      if (type == kBf16) {
        ASSERT_EQ(loaded.remainder(name), saved.remainder(name)) << name;
      }
    }
    expect_padding_is_zero(loaded);
  }
}

TEST(LoadState, GivesBackEveryBitOfEveryRule) {
  std::mt19937_64 random(7);
  for (const auto& rule : stored_rules()) {
    TempDir dir;
    SCOPED_TRACE(text(name_of(rule.type), ' ', rule.optimizer->name, ' ', name_of(rule.state_format)));
    Model saved(small_mixed_model(), rule, 1 + random() % 10'000);
    randomise(saved, random());
    save_weights(saved.stream(), dir.path());
    save_state(saved.stream(), dir / "spillway");
    Model loaded(small_mixed_model(), rule, 1 + random() % 10'000);
    EXPECT_EQ(load_state(loaded.stream(), dir / "spillway", dir.path()), rule.state_format);
    for (const auto& tensor : saved.layout.tensors()) {
      const auto& name = tensor.spec.name;
      ASSERT_EQ(loaded.masters(name), saved.masters(name)) << name;
      for (std::size_t m = 0; m < rule.moments(); ++m) ASSERT_EQ(loaded.moment(name, m), saved.moment(name, m)) << name;
    }
    expect_padding_is_zero(loaded);
  }
}

/// Moments of a tensor as fp32.
std::vector<float> moments(Model& model, const std::string& name, std::size_t number) {
  std::vector<float> out;
  model.for_parts(name, [&](const Located& at) {
    const auto* from = at.span.moments[number];
    std::vector<float> part(at.span.n);
    if (at.form.moments == kernels::Moments::exact) {
      std::memcpy(part.data(), from, part.size() * sizeof(float));
    } else if (at.form.moments == kernels::Moments::bf16) {
      kernels::decode_bf16(reinterpret_cast<const std::uint16_t*>(from), part.data(), part.size());
    } else {
      const auto kind = number == 0 ? kernels::Moment::first : kernels::Moment::second;
      kernels::decode_int8(kind, reinterpret_cast<const std::uint8_t*>(from), at.span.scales[number], part.data(),
                           part.size());
    }
    out.insert(out.end(), part.begin(), part.end());
  });
  return out;
}

/// Weights as they fall, and moments as training has them.
void train_a_little(Model& model, std::uint64_t seed) {
  randomise(model, seed);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const auto& tensor : model.layout.tensors()) {
    model.for_parts(tensor.spec.name, [&](const Located& at) {
      for (std::uint64_t i = 0; i < at.span.n; ++i) {
        const float first = normal(random) * 1e-3F, second = first * first * std::abs(normal(random));
        std::memcpy(at.span.moments[0] + 4 * i, &first, 4);
        std::memcpy(at.span.moments[1] + 4 * i, &second, 4);
      }
    });
  }
}

/// What a code of a block may be away from its value: half a step.
float allowed(StateFormat format, std::size_t number, float value, float largest) {
  if (format == StateFormat::bf16) return std::abs(value) / 256;
  return std::abs(value) / 32 + largest * (number == 0 ? 0x1p-10F : 0x1p-14F);
}

TEST(LoadState, ConvertsMomentsToTheNearestOfAnyFormatAndBack) {
  TempDir dir;
  Model exact(small_model(), kBf16, 3000);
  train_a_little(exact, 3);
  save_weights(exact.stream(), dir.path());
  save_state(exact.stream(), dir / "exact");
  for (const auto format : {StateFormat::bf16, StateFormat::int8}) {
    Model model(small_model(), UpdateRule{.state_format = format}, 5000);
    EXPECT_EQ(load_state(model.stream(), dir / "exact", dir.path()), StateFormat::exact);
    save_state(model.stream(), dir / name_of(format));
    Model back(small_model(), kBf16, 7000);
    EXPECT_EQ(load_state(back.stream(), dir / name_of(format), dir.path()), format);
    for (const auto& tensor : exact.layout.tensors()) {
      const auto& name = tensor.spec.name;
      ASSERT_EQ(model.masters(name), exact.masters(name));
      for (std::size_t m = 0; m < 2; ++m) {
        const auto before = moments(exact, name, m), after = moments(model, name, m);
        EXPECT_EQ(raw(moments(back, name, m)), raw(after)) << "back is exact";
        for (std::size_t i = 0; i < before.size(); ++i) {
          const auto first = before.begin() + static_cast<std::ptrdiff_t>(i / 256 * 256);
          const auto last = before.begin() + static_cast<std::ptrdiff_t>(std::min(i / 256 * 256 + 256, before.size()));
          const auto largest =
              *std::max_element(first, last, [](float a, float b) { return std::abs(a) < std::abs(b); });
          ASSERT_NEAR(before[i], after[i], allowed(format, m, before[i], std::abs(largest))) << name << ' ' << i;
        }
      }
    }
  }
}

TEST(SaveState, OfInt8HoldsCodesAndScalesAndSmallTensorsInFp32) {
  TempDir dir;
  Model model(small_model(), UpdateRule{.state_format = StateFormat::int8});
  randomise(model, 4);
  save_state(model.stream(), dir / "spillway");
  EXPECT_EQ(file_names(dir / "spillway"),
            (std::set<std::string>{"residual.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors",
                                   "exp_avg_scale.safetensors", "exp_avg_sq_scale.safetensors"}));
  const SafetensorsReader codes(dir / "spillway/exp_avg.safetensors"),
      scales(dir / "spillway/exp_avg_scale.safetensors");
  EXPECT_EQ(codes.find("layer.w")->dtype, "U8");
  EXPECT_EQ(codes.find("layer.norm")->dtype, "F32");
  EXPECT_EQ(scales.find("layer.w")->dtype, "F32");
  EXPECT_EQ(scales.find("layer.w")->shape, std::vector<std::int64_t>{28}) << "7000 elements in blocks of 256";
  EXPECT_EQ(scales.find("layer.norm"), nullptr);
}

/// A checkpoint of small_model() in bf16, and a model that it is to be loaded into.
class LoadStateErrors : public ::testing::Test {
 protected:
  void save(const std::vector<BlockSpec>& blocks, ComputeType type) {
    Model model(blocks, type);
    randomise(model, 1);
    save_weights(model.stream(), dir_.path());
    save_state(model.stream(), dir_ / "spillway");
  }
  void refused(ComputeType type, const std::vector<std::string>& parts) {
    Model model(small_model(), type);
    expect_error(ErrorCode::bad_input, parts, [&] { load_state(model.stream(), dir_ / "spillway", dir_.path()); });
    EXPECT_EQ(model.store.stored, 0);
  }
  TempDir dir_;
};

TEST_F(LoadStateErrors, AMissingFileIsNamed) {
  save(small_model(), kBf16);
  std::filesystem::remove(dir_ / "spillway/exp_avg_sq.safetensors");
  refused(kBf16, {(dir_ / "spillway/exp_avg_sq.safetensors").string(), "no such file"});
  std::filesystem::remove_all(dir_ / "spillway");
  refused(kBf16, {(dir_ / "spillway/residual.safetensors").string()});
}

TEST_F(LoadStateErrors, AnotherComputeTypeIsNamed) {
  save(small_model(), kBf16);
  refused(kFp32, {"tensor embed.weight", "BF16", "F32"});
}

TEST_F(LoadStateErrors, AnotherOptimizerIsNamed) {
  save(small_model(), kBf16);
  const auto file = [&](const char* name) { return (dir_ / "spillway" / name).string(); };
  const auto refuse = [&](const optim::Descriptor* optimizer, const std::vector<std::string>& parts) {
    Model model(small_model(), UpdateRule{.optimizer = optimizer});
    expect_error(ErrorCode::bad_input, parts, [&] { load_state(model.stream(), dir_ / "spillway", dir_.path()); });
    EXPECT_EQ(model.store.stored, 0);
  };
  refuse(&optim::lion, {file("exp_avg_sq.safetensors"), "lion keeps no exp_avg_sq"});
  refuse(&optim::sgd, {file("exp_avg.safetensors"), "sgd keeps no exp_avg"});
}

TEST_F(LoadStateErrors, ScalesThatAreMissingAreNamed) {
  Model model(small_model(), UpdateRule{.state_format = StateFormat::int8});
  randomise(model, 1);
  save_weights(model.stream(), dir_.path());
  save_state(model.stream(), dir_ / "spillway");
  std::filesystem::remove(dir_ / "spillway/exp_avg_sq_scale.safetensors");
  refused(kBf16, {(dir_ / "spillway/exp_avg_sq_scale.safetensors").string()});
}

TEST_F(LoadStateErrors, AnotherModelIsNamed) {
  auto other = small_model();
  other[1].tensors[0].shape = {7, 1000};
  save(other, kBf16);
  refused(kBf16, {"tensor layer.w", "[7, 1000]", "[70, 100]"});
}

TEST_F(LoadStateErrors, StateOfAnotherShapeOrTypeIsNamed) {
  save(small_model(), kBf16);
  const auto replace = [&](const char* field, const std::string& dtype, Bytes unit,
                           const std::vector<BlockSpec>& blocks) {
    TempDir other;
    write_model(other.path(), blocks, dtype, unit);
    const auto file = dir_ / "spillway" / (std::string(field) + ".safetensors");
    std::filesystem::rename(other / "model.safetensors", file);
    std::filesystem::remove(sheet_of(file));
  };
  auto blocks = small_model();
  blocks[0].tensors[0].shape = {100, 50};
  replace("exp_avg", "F32", 4, blocks);
  refused(kBf16, {"tensor embed.weight", "[100, 50]", "[50, 100]", "exp_avg.safetensors"});
  replace("exp_avg", "F16", 2, small_model());
  refused(kBf16, {"tensor embed.weight", "F16", "F32, BF16 or U8", "exp_avg.safetensors"});
  blocks = small_model();
  blocks[1].tensors.push_back({"layer.more", {3}});
  replace("exp_avg", "F32", 4, blocks);
  refused(kBf16, {"exp_avg.safetensors", "layer.more"});
  blocks = small_model();
  blocks.pop_back();
  replace("exp_avg", "F32", 4, blocks);
  refused(kBf16, {"exp_avg.safetensors", "no tensor head.weight"});
}

TEST(SaveState, ADirectoryThatCannotBeMadeIsNamed) {
  TempDir dir;
  Model model(small_model(), kBf16);
  expect_error(ErrorCode::io, {(dir / "a/b").string()}, [&] { save_state(model.stream(), dir / "a/b"); });
}

}  // namespace
}  // namespace spillway::state
