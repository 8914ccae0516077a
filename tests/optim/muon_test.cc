// Muon against a plain program that does what torch.optim.Muon does, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/product.h"
#include "spillway/kernels/split.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/step.h"

namespace spillway::optim {
namespace {

using Matrix = std::vector<std::uint16_t>;

std::vector<float> normal(std::size_t n, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of(0, scale);
  std::vector<float> out(n);
  for (auto& value : out) value = of(random);
  return out;
}

Matrix turned(const Matrix& x, std::size_t rows, std::size_t columns) {
  Matrix out(x.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < columns; ++k) out[k * rows + i] = x[i * columns + k];
  }
  return out;
}

/// out [rows, columns] = alpha a b + beta add.
Matrix product(const Matrix& a, const Matrix& b, std::size_t rows, std::size_t depth, std::size_t columns, float alpha,
               const Matrix* add, float beta) {
  Matrix out(rows * columns);
  kernels::scalar::multiply({.a = a.data(),
                             .b = b.data(),
                             .add = add == nullptr ? nullptr : add->data(),
                             .out = out.data(),
                             .a_stride = depth,
                             .b_stride = columns,
                             .stride = columns,
                             .rows = rows,
                             .columns = columns,
                             .depth = depth,
                             .alpha = alpha,
                             .beta = beta});
  return out;
}

Matrix newton_schulz(Matrix x, std::size_t rows, std::size_t columns) {
  const bool exchange = rows > columns;
  double squares = 0;
  for (const auto value : x) squares += std::pow(static_cast<double>(kernels::widen(value)), 2);
  const float norm = kernels::widen(kernels::round_bf16(static_cast<float>(std::sqrt(squares))));
  for (auto& value : x) value = kernels::round_bf16(kernels::widen(value) / std::max(norm, 1e-7F));
  if (exchange) x = turned(x, rows, columns), std::swap(rows, columns);
  for (int i = 0; i < 5; ++i) {
    const auto gram = product(x, turned(x, rows, columns), rows, columns, rows, 1, nullptr, 0);
    const auto polynomial = product(gram, gram, rows, rows, rows, 2.0315F, &gram, -4.775F);
    x = product(polynomial, x, rows, rows, columns, 1, &x, 3.4445F);
  }
  return exchange ? turned(x, rows, columns) : x;
}

/// A matrix in fp32, and what is known of it.
struct Plain {
  std::size_t rows, columns;
  std::vector<float> weight, mean;

  void step(const std::vector<float>& grad, float rate, float momentum, float keep) {
    Matrix ahead;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      mean[i] = std::fma(static_cast<float>(1 - 0.95), grad[i] - mean[i], mean[i]);
      ahead.push_back(kernels::round_bf16(std::fma(momentum - 1, mean[i] - grad[i], mean[i])));
    }
    const auto change = newton_schulz(ahead, rows, columns);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      weight[i] = std::fma(-rate, kernels::widen(change[i]), weight[i] * keep);
    }
  }
};

/// The workspace holds anything before, and tiles of a part are run in another order each time.
void run(MatrixSpan span, const Step& step, unsigned seed) {
  const auto& kernel = *muon.matrix;
  std::vector<std::byte> room(kernel.workspace(span.rows, span.columns) + 64, std::byte{0x5A});
  span.workspace = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(room.data()), 64UL));
  std::mt19937 random(seed);
  for (std::size_t part = 0; part < kernel.parts; ++part) {
    std::vector<std::size_t> order(kernel.tiles(span.rows, span.columns, part));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    for (const auto tile : order) kernel.run(span, step, part, tile);
  }
}

constexpr std::pair<std::size_t, std::size_t> kShapes[] = {{96, 64}, {64, 96},   {1, 40},
                                                           {300, 7}, {130, 250}, {200, 200}};

TEST(Muon, IsAsAPlainProgram) {
  for (const auto& [rows, columns] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const auto n = rows * columns;
    Plain plain{rows, columns, normal(n, 1, 0.02F), std::vector<float>(n)};
    auto weight = plain.weight;
    std::vector<float> mean(n);
    for (int number = 1; number <= 3; ++number) {
      const auto grad = normal(n, 10U + static_cast<unsigned>(number), 1e-3F);
      const auto step = make_step(muon, {{"learning_rate", 0.02}, {"weight_decay", 0.1}, {"adjust_lr", 0}});
      const auto ratio = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
      plain.step(grad, static_cast<float>(0.02 * ratio), 0.95F, static_cast<float>(1 - 0.02 * 0.1));
      run({.rows = rows,
           .columns = columns,
           .weights = kernels::Weights::fp32,
           .weight = reinterpret_cast<std::byte*>(weight.data()),
           .fields = {mean.data(), nullptr},
           .grad = reinterpret_cast<const std::byte*>(grad.data()),
           .decays = true},
          step, static_cast<unsigned>(number));
      ASSERT_EQ(mean, plain.mean);
      ASSERT_EQ(weight, plain.weight);
    }
  }
}

/// A bf16 weight with its remainder is that of fp32.
TEST(Muon, UpdatesTheMasterOfABf16Weight) {
  constexpr std::size_t kRows = 50, kColumns = 70, n = kRows * kColumns;
  auto masters = normal(n, 1, 0.02F);
  std::vector<std::uint16_t> weight(n), remainder(n), grad(n);
  std::vector<float> mean(n), wide_mean(n), wide_grad(n);
  const auto values = normal(n, 2, 1e-3F);
  for (std::size_t i = 0; i < n; ++i) {
    kernels::scalar::split_bits(kernels::as_bits(masters[i]), weight[i], remainder[i]);
    grad[i] = kernels::round_bf16(values[i]);
    wide_grad[i] = kernels::widen(grad[i]);
  }
  const auto bytes = [](auto& of) { return reinterpret_cast<std::byte*>(of.data()); };
  const auto step = make_step(muon, {{"learning_rate", 0.02}});
  run({.rows = kRows,
       .columns = kColumns,
       .weight = bytes(weight),
       .remainder = bytes(remainder),
       .fields = {mean.data(), nullptr},
       .grad = bytes(grad)},
      step, 1);
  run({.rows = kRows,
       .columns = kColumns,
       .weights = kernels::Weights::fp32,
       .weight = bytes(masters),
       .fields = {wide_mean.data(), nullptr},
       .grad = bytes(wide_grad)},
      step, 2);
  EXPECT_EQ(mean, wide_mean);
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(kernels::as_float(kernels::scalar::join_bits(weight[i], remainder[i])), masters[i]) << i;
  }
}

TEST(Muon, OfNoGradientStaysWhereItIs) {
  constexpr std::size_t n = 20 * 30;
  std::vector<float> weight = normal(n, 1, 1), mean(n);
  const auto before = weight;
  const std::vector<float> grad(n);
  run({.rows = 20,
       .columns = 30,
       .weights = kernels::Weights::fp32,
       .weight = reinterpret_cast<std::byte*>(weight.data()),
       .fields = {mean.data(), nullptr},
       .grad = reinterpret_cast<const std::byte*>(grad.data())},
      make_step(muon, {{"learning_rate", 0.1}}), 1);
  EXPECT_EQ(weight, before);
}

}  // namespace
}  // namespace spillway::optim
