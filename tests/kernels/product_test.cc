// Products of bf16 matrices bit by bit against their scalar reference on every instruction set.
#include "spillway/kernels/product.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "tests/kernels/bits.h"
#include "tests/nightly.h"

namespace spillway::kernels {
namespace {

std::vector<std::uint16_t> matrix(std::size_t entries, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  std::vector<std::uint16_t> out(entries);
  for (auto& value : out) value = round_bf16(values(random));
  return out;
}

/// A product with room around each of its matrices.
struct Case {
  Case(std::size_t rows, std::size_t columns, std::size_t depth)
      : a(matrix(rows * (depth + 1), 1)),
        b(matrix(depth * (columns + 2), 2)),
        add(matrix(rows * (columns + 3), 3)),
        product{.a = a.data(),
                .b = b.data(),
                .a_stride = depth + 1,
                .b_stride = columns + 2,
                .stride = columns + 3,
                .turned_stride = rows + 1,
                .rows = rows,
                .columns = columns,
                .depth = depth} {}

  struct Result {
    std::vector<std::uint16_t> out, turned;
    friend bool operator==(const Result&, const Result&) = default;
  };
  template <class Multiply>
  [[nodiscard]] Result by(const Multiply& multiply) const {
    Result result{std::vector<std::uint16_t>(product.rows * product.stride, 7),
                  std::vector<std::uint16_t>(product.columns * product.turned_stride, 7)};
    auto it = product;
    it.out = result.out.data(), it.turned = result.turned.data();
    multiply(it);
    return result;
  }

  std::vector<std::uint16_t> a, b, add;
  Product product;
};

void by_tiles(const Product& it) {
  std::vector<float> work(kProductWork, -1.0F);
  for (std::size_t row = 0; row < it.rows; row += kProductTile) {
    for (std::size_t column = 0; column < it.columns; column += kProductTile) {
      multiply_tile(it, row, column, work.data());
    }
  }
}

/// Sides around a tile, a panel and a vector, depths around what is multiplied at a time. By default every fifth of
/// them on each target, another fifth on the next.
TEST(Product, IsAsScalar) {
  const int stride = spillway::testing::few_or(5, 1);
  int number = 0;
  testing::on_every_target([&] {
    for (const std::size_t rows : {1, 5, 6, 7, 96, 97, 130}) {
      for (const std::size_t columns : {1, 15, 16, 31, 32, 33, 96, 100, 193}) {
        for (const std::size_t depth : {0, 1, 191, 192, 193, 400}) {
          if (++number % stride != 0) continue;
          SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", " << depth);
          Case it(rows, columns, depth);
          ASSERT_TRUE(it.by(scalar::multiply) == it.by(by_tiles));
          it.product.add = it.add.data(), it.product.alpha = 2.0315F, it.product.beta = -4.775F;
          ASSERT_TRUE(it.by(scalar::multiply) == it.by(by_tiles));
        }
      }
    }
  });
}

TEST(Product, OfAMatrixAndItsTurnedOneIsSymmetric) {
  constexpr std::size_t n = 130, depth = 70;
  const auto x = matrix(n * depth, 1);
  std::vector<std::uint16_t> turned(x.size()), whole(n * n), half(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < depth; ++k) turned[k * n + i] = x[i * depth + k];
  }
  Product it{.a = x.data(),
             .b = turned.data(),
             .out = whole.data(),
             .a_stride = depth,
             .b_stride = n,
             .stride = n,
             .turned_stride = n,
             .rows = n,
             .columns = n,
             .depth = depth};
  by_tiles(it);
  std::vector<float> work(kProductWork);
  it.out = it.turned = half.data();
  for (std::size_t row = 0; row < n; row += kProductTile) {
    for (std::size_t column = 0; column <= row; column += kProductTile) multiply_tile(it, row, column, work.data());
  }
  EXPECT_TRUE(whole == half);
}

}  // namespace
}  // namespace spillway::kernels
