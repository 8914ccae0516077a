// Small models in memory and in files, that tests of checkpoints and of saved states share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "spillway/kernels/moments.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/convert.h"
#include "spillway/state/digests.h"
#include "tests/state/files.h"

namespace spillway::state {

inline constexpr auto kBf16 = ComputeType::bf16;
inline constexpr auto kFp32 = ComputeType::fp32;

/// Every rule there is.
inline std::vector<UpdateRule> stored_rules() {
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

inline std::vector<BlockSpec> small_model() {
  return {
      {"embed", BlockRole::embedding, {{"embed.weight", {50, 100}}}},
      {"layer", BlockRole::layer, {{"layer.w", {70, 100}}, {"layer.norm", {100}}, {"layer.scale", {}}}},
      {"head", BlockRole::head, {{"head.weight", {50, 100}}}},
  };
}

/// The same with tensors that are kept in fp32.
inline std::vector<BlockSpec> small_mixed_model() {
  auto out = small_model();
  auto& tensors = out[1].tensors;
  tensors.insert(tensors.begin(), {.name = "layer.gate", .shape = {60, 100}, .form = Form::fp32});
  tensors.push_back({.name = "layer.bias", .shape = {77}, .form = Form::fp32});
  return out;
}

inline std::uint64_t elements_of(const TensorSpec& tensor) {
  std::uint64_t out = 1;
  for (const auto size : tensor.shape) out *= static_cast<std::uint64_t>(size);
  return out;
}

/// Random bits of values of so many bytes, all of which are finite: the exponent's first bit is 0.
inline std::string random_values(std::size_t count, Bytes unit, std::mt19937_64& random) {
  auto out = random_bytes(count * unit, random);
  for (std::size_t at = unit - 1; at < out.size(); at += unit) out[at] = static_cast<char>(out[at] & 0xBF);
  return out;
}

/// Writes `blocks` with random values of type `dtype`; returns the bytes by name.
inline std::map<std::string, std::string> write_model(const std::filesystem::path& directory,
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

inline std::map<std::string, std::string> read_file(const std::filesystem::path& path) {
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
inline void expect_padding_is_zero(Model& model) {
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

inline bool all_zero(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

inline void randomise(Model& model, std::uint64_t seed) {
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

/// One value of a tensor in a model's file becomes another.
inline void put_value(const std::filesystem::path& directory, const std::string& name, std::uint64_t element,
                      std::string bytes) {
  const SafetensorsReader reader(directory);
  const auto& tensor = *reader.find(name);
  const auto& file = reader.files()[tensor.file];
  auto content = get(file);
  content.replace(tensor.offset + element * tensor.element_bytes, bytes.size(), bytes);
  put(file, content);
  std::filesystem::remove(sheet_of(file));
}

}  // namespace spillway::state
