// spillway::Optimizer beside the kernels themselves: where states lie and how many threads update changes nothing.
#include "spillway/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>

#include "tests/contract/directory.h"

namespace spillway {
namespace {

using kernels::UpdateForm;

/// More than a chunk, less than a block of codes, small, and something in between.
const std::vector<std::uint64_t> kElements = {(2u << 20) + 777, 100, 4095, 300'000};

struct Case {
  state::ComputeType type;
  state::StateFormat format;
  const optim::Descriptor* optimizer;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto type : {state::ComputeType::bf16, state::ComputeType::fp32}) {
    for (const auto format : {state::StateFormat::exact, state::StateFormat::bf16, state::StateFormat::int8}) {
      out.push_back({type, format, &optim::adamw});
    }
  }
  out.push_back({state::ComputeType::bf16, state::StateFormat::int8, &optim::lion});
  return out;
}

/// Tensors in a caller's memory.
class Tensors {
 public:
  explicit Tensors(state::ComputeType type) : type_(type), item_(state::field_bytes(type).weight) {
    for (const auto n : kElements) {
      weights_.emplace_back(n * item_);
      grads_.emplace_back(n * item_);
      randomize(weights_.back(), n);
    }
  }

  std::vector<OptimizerTensor> specs() const {
    std::vector<OptimizerTensor> out;
    for (const auto n : kElements) out.push_back({"t", n, type_});
    return out;
  }

  std::vector<Optimizer::Update> updates(std::int64_t step, const optim::Descriptor* optimizer = &optim::adamw) {
    std::vector<Optimizer::Update> out;
    for (std::size_t t = 0; t < kElements.size(); ++t) {
      if (step == 2 && t == 1) continue;  // no gradient this time
      randomize(grads_[t], static_cast<std::uint64_t>(step) * 100 + t);
      auto applied = optim::make_step(*optimizer, {{"learning_rate", 1e-2}, {"weight_decay", 0.1}});
      applied.step = step;
      out.push_back({.tensor = t, .weight = weights_[t].data(), .grad = grads_[t].data(), .step = applied});
    }
    return out;
  }

  const std::vector<std::vector<std::byte>>& weights() const { return weights_; }

 private:
  void randomize(std::vector<std::byte>& values, std::uint64_t seed) const {
    auto random = static_cast<std::uint32_t>(seed);
    for (std::size_t i = 0; i < values.size() / item_; ++i) {
      random = random * 1664525 + 1013904223;
      const float value = static_cast<float>(random) / 4e9F - 0.5F;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      if (item_ == 2) bits >>= 16;
      std::memcpy(values.data() + i * item_, &bits, item_);
    }
  }

  state::ComputeType type_;
  Bytes item_;
  std::vector<std::vector<std::byte>> weights_, grads_;
};

std::vector<std::vector<std::byte>> state_of(Optimizer& optimizer) {
  std::vector<std::vector<std::byte>> out;
  for (std::size_t t = 0; t < kElements.size(); ++t) {
    std::vector<std::span<std::byte>> spans;
    const auto arrays = optimizer.arrays(t);
    const std::size_t first = out.size();
    for (const auto& array : arrays) out.emplace_back(array.entries * array.item, std::byte{0xAA});
    for (std::size_t i = first; i < out.size(); ++i) spans.emplace_back(out[i]);
    optimizer.fetch(t, spans);
  }
  return out;
}

struct Result {
  std::vector<std::vector<std::byte>> weights, state;
  bool operator==(const Result&) const = default;
};

Result run(const Case& it, OptimizerSettings settings) {
  settings.optimizer = it.optimizer;
  settings.format = it.format;
  settings.seed = 5;
  Tensors tensors(it.type);
  Optimizer optimizer(tensors.specs(), settings);
  for (std::int64_t step = 1; step <= 3; ++step) optimizer.step(tensors.updates(step, it.optimizer));
  return {tensors.weights(), state_of(optimizer)};
}

/// The same with one call of the kernel per tensor.
std::vector<std::vector<std::byte>> run_kernels(const Case& it) {
  Tensors tensors(it.type);
  std::vector<std::vector<std::byte>> remainder, first, second;
  std::vector<std::vector<float>> scales;
  for (const auto n : kElements) {
    remainder.emplace_back(n * 2);
    first.emplace_back(n * 4);
    second.emplace_back(n * 4);
    scales.emplace_back(2 * (n / kernels::kQuantBlock + 1));
  }
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (const auto& update : tensors.updates(step, it.optimizer)) {
      const auto t = update.tensor;
      const UpdateForm form{
          .weights = it.type == state::ComputeType::bf16 ? kernels::Weights::bf16 : kernels::Weights::fp32,
          .moments = state::moments_of(it.format, kElements[t] < state::kUnquantisedBelow)};
      auto applied = optim::kernel_step(*it.optimizer, update.step);
      applied.seed = 5;
      kernels::update(form,
                      {.weight = update.weight,
                       .remainder = remainder[t].data(),
                       .moments = {first[t].data(), second[t].data()},
                       .scales = {scales[t].data(), scales[t].data() + scales[t].size() / 2},
                       .grad = update.grad,
                       .n = kElements[t],
                       .index = std::uint64_t{t} << 40},
                      applied);
    }
  }
  return tensors.weights();
}

TEST(Optimizer, IsTheKernelWhereverStatesLie) {
  const test::Directory one, two;
  for (const auto& it : cases()) {
    SCOPED_TRACE(text(state::name_of(it.type), ' ', state::name_of(it.format), ' ', it.optimizer->name));
    const auto expected = run(it, {});
    EXPECT_TRUE(expected.weights == run_kernels(it));
    EXPECT_TRUE(expected == run(it, {.threads = 3}));
    EXPECT_TRUE(expected == run(it, {.threads = 2, .storage = {{one.path()}}, .staging = 1}));
    EXPECT_TRUE(expected == run(it, {.storage = {{one.path()}, {two.path()}}}));
  }
}

TEST(Optimizer, WhatWasStoredIsFetchedAndMastersFollowWeights) {
  const test::Directory directory;
  for (const auto& storage : {std::vector<StoragePlace>{}, std::vector<StoragePlace>{{directory.path()}}}) {
    Tensors tensors(state::ComputeType::bf16);
    Optimizer optimizer(tensors.specs(), {.format = state::StateFormat::int8, .storage = storage});
    std::mt19937 random(1);
    std::vector<std::vector<std::byte>> expected;
    for (std::size_t t = 0; t < kElements.size(); ++t) {
      std::vector<std::span<const std::byte>> spans;
      std::vector<std::vector<std::byte>> arrays;
      for (const auto& array : optimizer.arrays(t)) {
        arrays.emplace_back(array.entries * array.item);
        std::ranges::generate(arrays.back(), [&] { return static_cast<std::byte>(random()); });
      }
      for (const auto& array : arrays) spans.emplace_back(array);
      optimizer.store(t, spans);
      expected.insert(expected.end(), arrays.begin(), arrays.end());
    }
    EXPECT_TRUE(state_of(optimizer) == expected);
    optimizer.set_master(0, tensors.weights()[0].data());
    std::ranges::fill(expected[0], std::byte{0});  // the remainder
    EXPECT_TRUE(state_of(optimizer) == expected);
  }
}

TEST(Optimizer, AMasterOfFp16IsItsWeightWidened) {
  Optimizer optimizer({{"t", kElements[0], state::ComputeType::fp16}}, {});
  std::vector<std::uint16_t> weights(kElements[0], 0x3C00);
  weights.back() = 0xC000;
  std::vector<float> expected(kElements[0], 1.0F), master(kElements[0]), first(kElements[0]), second(kElements[0]);
  expected.back() = -2.0F;
  optimizer.set_master(0, reinterpret_cast<const std::byte*>(weights.data()));
  ASSERT_EQ(optimizer.arrays(0).front().name, "master");
  const std::array arrays = {std::as_writable_bytes(std::span(master)), std::as_writable_bytes(std::span(first)),
                             std::as_writable_bytes(std::span(second))};
  const std::vector<std::span<std::byte>> spans(arrays.begin(), arrays.end());
  optimizer.fetch(0, spans);
  EXPECT_EQ(master, expected);
}

TEST(Optimizer, RefusesATensorWithoutElements) {
  try {
    const Optimizer optimizer({{"empty", 0, state::ComputeType::fp32}}, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("empty"), std::string::npos);
  }
}

}  // namespace
}  // namespace spillway
