#include "spillway/state/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "spillway/kernels/moments.h"
#include "spillway/state/convert.h"
#include "spillway/state/digests.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

constexpr auto kBf16 = ComputeType::bf16;
constexpr auto kFp32 = ComputeType::fp32;

/// Every rule there is.
std::vector<UpdateRule> stored_rules() {
  std::vector<UpdateRule> out;
  for (const auto type : {kBf16, kFp32, ComputeType::fp16}) {
    for (const auto optimizer : {&optim::adamw, &optim::lion, &optim::sgd}) {
      for (const auto format : {StateFormat::exact, StateFormat::bf16, StateFormat::int8}) {
        out.push_back({type, optimizer, format});
      }
    }
  }
  return out;
}

/// Chunks in plain memory, every byte 0xEE to begin with.
class MemoryStore final : public ChunkStore {
 public:
  MemoryStore(const Layout& layout, const UpdateRule& rule) : layout_(layout), type_(rule.type) {
    for (const auto& chunk : layout.chunks()) {
      weight.emplace_back(weight_bytes(rule, chunk), std::byte{0xEE});
      state.emplace_back(state_bytes(rule, chunk), std::byte{0xEE});
    }
  }
  void load(std::size_t chunk, std::byte* weight_out, std::byte* state_out) override {
    if (weight_out != nullptr) std::copy(weight[chunk].begin(), weight[chunk].end(), weight_out);
    if (state_out != nullptr) std::copy(state[chunk].begin(), state[chunk].end(), state_out);
  }
  void store(std::size_t chunk, const std::byte* weight_in, const std::byte* state_in) override {
    if (weight_in != nullptr) std::copy_n(weight_in, weight[chunk].size(), weight[chunk].begin());
    if (state_in != nullptr) std::copy_n(state_in, state[chunk].size(), state[chunk].begin());
    ++stored;
  }

  ChunkFields fields(std::size_t chunk) {
    return chunk_fields(type_, layout_.chunks()[chunk], weight[chunk].data(), state[chunk].data());
  }

  std::vector<std::vector<std::byte>> weight, state;
  int stored = 0;

 private:
  const Layout& layout_;
  ComputeType type_;
};

/// A model's chunks in memory, and the stream that the operations walk.
struct Model {
  Model(const std::vector<BlockSpec>& blocks, ComputeType compute, std::uint64_t chunk = 4096)
      : Model(blocks, UpdateRule{.type = compute}, chunk) {}
  Model(const std::vector<BlockSpec>& blocks, const UpdateRule& of, std::uint64_t chunk = 4096)
      : layout(blocks, chunk, of.alignment(), of.type),
        rule(of),
        store(layout, of),
        scratch(scratch_bytes(layout, of)) {}

  ChunkStream stream() { return {layout, rule, store, scratch}; }

  /// Calls body(located) for each part of a tensor, in order.
  template <class Body>
  void for_parts(const std::string& name, const Body& body) {
    for (const auto& chunk : layout.chunks()) {
      for (const auto& span : layout.spans(chunk.id)) {
        if (layout.tensors()[span.tensor].spec.name != name) continue;
        const GroupPointers groups{store.weight[chunk.id].data(), store.state[chunk.id].data()};
        body(locate(rule, chunk, span, groups, span.chunk_first, span.elements));
      }
    }
  }
  /// The bits of a moment of a tensor, and of its scales.
  std::string moment(const std::string& name, std::size_t number) {
    std::string values, scales;
    for_parts(name, [&](const Located& at) {
      const auto* first = reinterpret_cast<const char*>(at.span.moments[number]);
      values.append(first, at.span.n * traits(at.form.moments).bytes);
      if (at.form.moments != kernels::Moments::int8) return;
      scales.append(reinterpret_cast<const char*>(at.span.scales[number]), ceil_div(at.span.n, 256) * 4);
    });
    return values + scales;
  }

  /// Bits of one field of every element of a tensor, in order, as text.
  template <class T>
  std::string field(const std::string& name, T* (*data)(const ChunkFields&)) {
    std::string out;
    for (const auto& chunk : layout.chunks()) {
      for (const auto& span : layout.spans(chunk.id)) {
        if (layout.tensors()[span.tensor].spec.name != name) continue;
        const auto* first = data(store.fields(chunk.id)) + span.chunk_first;
        out.append(reinterpret_cast<const char*>(first), span.elements * sizeof(T));
      }
    }
    return out;
  }
  std::string remainder(const std::string& name) {
    return field<std::uint16_t>(name,
                                [](const ChunkFields& f) { return reinterpret_cast<std::uint16_t*>(f.remainder); });
  }
  std::string exp_avg(const std::string& name) { return moment(name, 0); }
  std::string exp_avg_sq(const std::string& name) { return moment(name, 1); }
  std::string masters(const std::string& name) {
    std::string out;
    for (const auto& chunk : layout.chunks()) {
      for (const auto& span : layout.spans(chunk.id)) {
        if (layout.tensors()[span.tensor].spec.name != name) continue;
        std::vector<float> values(span.elements);
        from_chunk(store.fields(chunk.id), span.chunk_first, values);
        out += raw(values);
      }
    }
    return out;
  }

  Layout layout;
  UpdateRule rule;
  MemoryStore store;
  std::vector<std::byte> scratch;
};

std::vector<BlockSpec> small_model() {
  return {
      {"embed", BlockRole::embedding, {{"embed.weight", {50, 100}}}},
      {"layer", BlockRole::layer, {{"layer.w", {70, 100}}, {"layer.norm", {100}}, {"layer.scale", {}}}},
      {"head", BlockRole::head, {{"head.weight", {50, 100}}}},
  };
}

/// The same with tensors that are kept in fp32.
std::vector<BlockSpec> small_mixed_model() {
  auto out = small_model();
  auto& tensors = out[1].tensors;
  tensors.insert(tensors.begin(), {.name = "layer.gate", .shape = {60, 100}, .form = Form::fp32});
  tensors.push_back({.name = "layer.bias", .shape = {77}, .form = Form::fp32});
  return out;
}

std::uint64_t elements_of(const TensorSpec& tensor) {
  std::uint64_t out = 1;
  for (const auto size : tensor.shape) out *= static_cast<std::uint64_t>(size);
  return out;
}

/// Random bits of values of so many bytes, all of which are finite: the exponent's first bit is 0.
std::string random_values(std::size_t count, Bytes unit, std::mt19937_64& random) {
  auto out = random_bytes(count * unit, random);
  for (std::size_t at = unit - 1; at < out.size(); at += unit) out[at] = static_cast<char>(out[at] & 0xBF);
  return out;
}

/// Writes `blocks` with random values of type `dtype`; returns the bytes by name.
std::map<std::string, std::string> write_model(const std::filesystem::path& directory,
                                               const std::vector<BlockSpec>& blocks, const std::string& dtype,
                                               Bytes unit, Bytes max_shard = 50'000'000'000) {
  std::mt19937_64 random(9);
  std::vector<TensorOut> list;
  std::map<std::string, std::string> data;
  for (const auto& block : blocks) {
    for (const auto& tensor : block.tensors) {
      list.push_back({tensor.name, dtype, tensor.shape});
      data[tensor.name] = random_values(elements_of(tensor), unit, random);
    }
  }
  SafetensorsWriter writer(directory, "model", list, max_shard);
  for (std::size_t i = 0; i < list.size(); ++i) {
    writer.write(i, 0, std::as_bytes(std::span(std::as_const(data[list[i].name]))));
  }
  writer.finish();
  return data;
}

std::map<std::string, std::string> read_file(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  std::map<std::string, std::string> out;
  for (const auto& [name, tensor] : reader.tensors()) {
    std::string data(tensor.elements * tensor.element_bytes, '\0');
    reader.read(tensor, 0, tensor.elements, reinterpret_cast<std::byte*>(data.data()));
    out[name] = data;
  }
  return out;
}

/// Padding: what lies in no tensor.
void expect_padding_is_zero(Model& model) {
  for (const auto& chunk : model.layout.chunks()) {
    std::vector<bool> used(chunk.values(), false);
    for (const auto& span : model.layout.spans(chunk.id)) {
      for (std::uint64_t i = 0; i < span.elements; ++i) used[span.chunk_first + i] = true;
    }
    const auto fields = model.store.fields(chunk.id);
    for (std::uint64_t i = 0; i < chunk.values(); ++i) {
      if (used[i]) continue;
      float master = 1;
      from_chunk(fields, i, {&master, 1});
      ASSERT_EQ(std::bit_cast<std::uint32_t>(master), 0U);
      for (std::size_t m = 0; m < model.rule.moments(); ++m) {
        const auto unit = traits(model.rule.state_format).bytes;
        const auto first = state_fields(model.rule, chunk).moments[m] + i * unit;
        for (Bytes b = 0; b < unit; ++b) ASSERT_EQ(model.store.state[chunk.id][first + b], std::byte{0});
      }
    }
  }
}

bool all_zero(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

void randomise(Model& model, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto* group : {&model.store.weight, &model.store.state}) {
    for (auto& chunk : *group) {
      for (auto& byte : chunk) byte = static_cast<std::byte>(random());
    }
  }
  for (const auto& chunk : model.layout.chunks()) {  // weights that are finite
    const auto unit = field_bytes(rule_of(model.rule, chunk).type).weight;
    auto& bytes = model.store.weight[chunk.id];
    for (std::size_t at = unit - 1; at < bytes.size(); at += unit) bytes[at] &= std::byte{0xBF};
  }
}

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

/// One value of a tensor in a model's file becomes another.
void put_value(const std::filesystem::path& directory, const std::string& name, std::uint64_t element,
               std::string bytes) {
  const SafetensorsReader reader(directory);
  const auto& tensor = *reader.find(name);
  const auto& file = reader.files()[tensor.file];
  auto content = get(file);
  content.replace(tensor.offset + element * tensor.element_bytes, bytes.size(), bytes);
  put(file, content);
  std::filesystem::remove(sheet_of(file));
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

TEST(SaveState, ADirectoryThatCannotBeMadeIsNamed) {
  TempDir dir;
  Model model(small_model(), kBf16);
  expect_error(ErrorCode::io, {(dir / "a/b").string()}, [&] { save_state(model.stream(), dir / "a/b"); });
}

}  // namespace
}  // namespace spillway::state
