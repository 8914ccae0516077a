// Products with projectors: bit by bit against their scalar references on every instruction set, and those against
// dense matrices in double.
#include "spillway/kernels/project.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/split.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::expect_same;
using testing::mix;
using testing::numbers;

/// Numbers between -1 and 1.
float number(std::uint32_t index, std::uint32_t seed) {
  return static_cast<float>(mix(index + seed * 0x9E3779B9U) >> 8) * 0x1p-23F - 1;
}

/// The places of a projector's values.
enum class Kind : std::uint8_t { blocks, scattered };
constexpr std::array kKinds = {Kind::blocks, Kind::scattered};

struct Held {
  std::vector<float> values;
  std::vector<std::uint32_t> places;
  Projector view;

  Held(std::size_t rows, std::size_t columns, std::size_t nonzeros, std::uint32_t seed, Kind kind = Kind::blocks)
      : view{.rows = rows, .columns = columns, .nonzeros = nonzeros} {
    values.resize(nonzeros * view.stride());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(static_cast<std::uint32_t>(i), seed);
    view.values = values.data();
    if (kind == Kind::blocks) return;
    places.resize(values.size());
    for (std::size_t i = 0; i < rows; ++i) {
      const auto first = mix(static_cast<std::uint32_t>(i) + seed);
      for (std::size_t s = 0; s < nonzeros; ++s) {
        places[s * view.stride() + i] = static_cast<std::uint32_t>((first + s * (columns / nonzeros)) % columns);
      }
    }
    view.places = places.data();
  }
  /// As a dense matrix [rows][columns].
  [[nodiscard]] std::vector<double> dense() const {
    std::vector<double> out(view.rows * view.columns);
    for (std::size_t i = 0; view.is_scattered() && i < view.rows; ++i) {
      for (auto at = i; at < places.size(); at += view.stride()) out[i * view.columns + places[at]] = values[at];
    }
    if (view.is_scattered()) return out;
    for (std::size_t g = 0; g < view.groups(); ++g) {
      for (auto i = view.first(g); i < view.first(g + 1); ++i) {
        for (std::size_t s = 0; s < view.nonzeros; ++s) {
          out[i * view.columns + g * view.nonzeros + s] = values[s * view.stride() + i];
        }
      }
    }
    return out;
  }
};

struct Shape {
  std::size_t rows, columns, nonzeros;
};
/// Edges: one value a row, one group, as many columns as rows, groups of unequal size, of more than a vector.
const std::vector<Shape> kShapes = {{1, 1, 1},   {8, 4, 4},   {16, 8, 4},   {17, 8, 4},  {37, 12, 3},
                                    {40, 40, 5}, {64, 4, 4},  {70, 7, 7},   {33, 11, 1}, {12, 12, 1},
                                    {96, 12, 2}, {50, 48, 8}, {129, 16, 16}};

TEST(Project, EveryRowBelongsToOneGroup) {
  for (const auto& shape : kShapes) {
    const Projector r{.rows = shape.rows, .columns = shape.columns, .nonzeros = shape.nonzeros};
    EXPECT_EQ(0U, r.first(0));
    EXPECT_EQ(r.rows, r.first(r.groups()));
    for (std::size_t i = 0; i < r.rows; ++i) {
      const auto g = r.group_of(i);
      EXPECT_LE(r.first(g), i);
      EXPECT_GT(r.first(g + 1), i);
      EXPECT_LE(r.first(g + 1) - r.first(g), r.largest());
      EXPECT_GE(r.first(g + 1) - r.first(g), r.nonzeros);  // so that its columns can be orthonormal
    }
  }
}

template <class T>
std::vector<T> tokens_of(std::size_t n, std::uint32_t rarity) {
  if constexpr (std::is_same_v<T, Fp16>) {
    std::vector<Fp16> out;
    for (const auto bits : numbers<std::uint16_t>(n, 0, 3, 0))
      out.push_back({static_cast<std::uint16_t>(bits & 0xBFFF)});
    return out;
  } else {
    return numbers<T>(n, 0, 3, rarity);
  }
}

template <class T>
std::uint32_t pattern(T value) {
  if constexpr (std::is_same_v<T, Fp16>) {
    return value.bits;
  } else {
    return testing::bits_of(value);
  }
}

template <class T>
void compress_as_scalar(Kind kind) {
  testing::on_every_target([kind] {
    for (const auto& shape : kShapes) {
      const Held r(shape.rows, shape.columns, shape.nonzeros, 1, kind);
      std::vector<float> work(compress_work(r.view));
      for (const std::size_t tokens : {0, 1, 7, 16, 17, 53}) {
        SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.columns << ", " << tokens << " tokens");
        const auto in_stride = shape.rows + 3, out_stride = tokens + 5;
        const auto in = tokens_of<T>(tokens * in_stride + 1, tokens == 53 ? 50 : 0);
        std::vector<T> expected(shape.columns * out_stride), actual = expected;
        scalar::compress(r.view, in.data() + 1, in_stride, tokens, expected.data(), out_stride);
        compress(r.view, in.data() + 1, in_stride, tokens, actual.data(), out_stride, work.data());
        for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(pattern(expected[i]), pattern(actual[i])) << i;
      }
    }
  });
}

TEST(Project, CompressesBf16AsScalar) {
  for (const auto kind : kKinds) compress_as_scalar<std::uint16_t>(kind);
}
TEST(Project, CompressesFp32AsScalar) {
  for (const auto kind : kKinds) compress_as_scalar<float>(kind);
}
TEST(Project, CompressesFp16AsScalar) {
  for (const auto kind : kKinds) compress_as_scalar<Fp16>(kind);
}

void compress_as_dense(Kind kind) {
  for (const auto& shape : kShapes) {
    const Held r(shape.rows, shape.columns, shape.nonzeros, 2, kind);
    const auto dense = r.dense();
    constexpr std::size_t tokens = 19;
    std::vector<float> in(tokens * shape.rows), out(shape.columns * tokens), work(compress_work(r.view));
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = number(static_cast<std::uint32_t>(i), 7);
    compress(r.view, in.data(), shape.rows, tokens, out.data(), tokens, work.data());
    for (std::size_t c = 0; c < shape.columns; ++c) {
      for (std::size_t t = 0; t < tokens; ++t) {
        double sum = 0;
        for (std::size_t i = 0; i < shape.rows; ++i) sum += in[t * shape.rows + i] * dense[i * shape.columns + c];
        ASSERT_NEAR(sum, out[c * tokens + t], 1e-5);
      }
    }
  }
}

TEST(Project, CompressesAsDenseMatrices) {
  for (const auto kind : kKinds) compress_as_dense(kind);
}

TEST(Project, NumbersTheScatteredValuesOfEachColumnByRow) {
  for (const auto& shape : kShapes) {
    const Held r(shape.rows, shape.columns, shape.nonzeros, 3, Kind::scattered);
    const auto stride = r.view.stride();
    std::vector<std::uint32_t> out(column_index_size(r.view), 99);
    number_columns(r.view, out.data());
    EXPECT_EQ(out[0], 0U);
    EXPECT_EQ(out[shape.columns], shape.rows * shape.nonzeros);
    std::vector<double> found(shape.rows * shape.columns);
    for (std::size_t c = 0; c < shape.columns; ++c) {
      for (auto k = out[c]; k < out[c + 1]; ++k) {
        const auto number = out[shape.columns + 1 + k];
        ASSERT_EQ(r.places[number], c);
        ASSERT_TRUE(k == out[c] || out[shape.columns + k] % stride < number % stride);
        found[number % stride * shape.columns + c] = r.values[number];
      }
    }
    EXPECT_EQ(found, r.dense());
  }
}

// ---- apply

struct Matrix {
  Weights weights;
  std::size_t n;
  bool has_remainder;  ///< bf16 may have none
  std::vector<std::byte> weight, remainder;

  Matrix(Weights form, std::size_t elements, bool with_remainder = true)
      : weights(form), n(elements), has_remainder(with_remainder), weight(n * 4), remainder(n * 4) {
    for (std::size_t i = 0; i < n; ++i) {
      const float value = number(static_cast<std::uint32_t>(i), 11);
      put(i, value);
    }
  }
  [[nodiscard]] UpdateSpan span(std::size_t first, std::size_t count) {
    const std::size_t w = weights == Weights::fp32 ? 4 : 2, r = weights == Weights::bf16 ? 2 : 4;
    return {.weight = weight.data() + first * w,
            .remainder = has_remainder ? remainder.data() + first * r : nullptr,
            .n = count,
            .index = 1003 + first};
  }
  void put(std::size_t i, float value) {
    if (weights == Weights::bf16) {
      split(&value, reinterpret_cast<std::uint16_t*>(weight.data()) + i,
            reinterpret_cast<std::uint16_t*>(remainder.data()) + i, 1);
    } else {
      reinterpret_cast<float*>(weights == Weights::fp32 ? weight.data() : remainder.data())[i] = value;
      if (weights == Weights::fp16) reinterpret_cast<std::uint16_t*>(weight.data())[i] = round_fp16(value);
    }
  }
  [[nodiscard]] float at(std::size_t i) const {
    if (weights == Weights::bf16) {
      float out = 0;
      join(reinterpret_cast<const std::uint16_t*>(weight.data()) + i,
           reinterpret_cast<const std::uint16_t*>(remainder.data()) + i, &out, 1);
      return out;
    }
    return reinterpret_cast<const float*>(weights == Weights::fp32 ? weight.data() : remainder.data())[i];
  }
};

struct Rectangle {
  Held p, q;
  std::vector<float> delta, work;
  Expansion expansion;

  Rectangle(const Shape& rows, const Shape& columns, Kind kind = Kind::blocks)
      : p(rows.rows, rows.columns, rows.nonzeros, 21, kind),
        q(columns.rows, columns.columns, columns.nonzeros, 22, kind) {
    for (std::size_t i = 0; i < rows.columns * rows.columns; ++i)
      delta.push_back(number(static_cast<std::uint32_t>(i), 5));
    expansion = {p.view, q.view, delta.data(), 5, 9};
    work.resize(apply_work(expansion));
  }
};

/// Rectangles either way, each side with its own groups.
const std::vector<std::pair<Shape, Shape>> kRectangles = {
    {{8, 4, 4}, {8, 4, 4}},      {{24, 12, 4}, {37, 12, 3}}, {{70, 12, 3}, {24, 12, 4}},
    {{16, 16, 16}, {40, 16, 4}}, {{33, 11, 1}, {11, 11, 1}}, {{20, 4, 4}, {129, 4, 4}},
    {{48, 24, 8}, {53, 24, 8}},  {{1, 1, 1}, {5, 1, 1}},     {{41, 40, 4}, {1100, 40, 4}}};  // more columns than a tile

void apply_as_scalar(Kind kind) {
  testing::on_every_target([kind] {
    for (const auto& [form, remainder] : std::initializer_list<std::pair<Weights, bool>>{
             {Weights::bf16, true}, {Weights::bf16, false}, {Weights::fp32, true}, {Weights::fp16, true}}) {
      for (const auto& [rows, columns] : kRectangles) {
        Rectangle it(rows, columns, kind);
        const auto n = rows.rows * columns.rows;
        Matrix expected(form, n, remainder), whole(form, n, remainder), cut(form, n, remainder);
        scalar::apply(form, it.expansion, 0.99F, expected.span(0, n), 0);
        apply(form, it.expansion, 0.99F, whole.span(0, n), 0, it.work.data());
        for (std::size_t first = 0; first < n; first += 29) {
          const auto count = std::min<std::size_t>(29, n - first);
          apply(form, it.expansion, 0.99F, cut.span(first, count), first, it.work.data());
        }
        ASSERT_EQ(expected.weight, whole.weight) << rows.rows << " x " << columns.rows;
        ASSERT_EQ(expected.remainder, whole.remainder);
        ASSERT_EQ(expected.weight, cut.weight);
        ASSERT_EQ(expected.remainder, cut.remainder);
      }
    }
  });
}

TEST(Project, AppliesAsScalarWhereverItIsCut) {
  for (const auto kind : kKinds) apply_as_scalar(kind);
}

void apply_as_dense(Kind kind) {
  for (const auto& [rows, columns] : kRectangles) {
    Rectangle it(rows, columns, kind);
    const auto m = rows.rows, n = columns.rows, d = rows.columns;
    Matrix matrix(Weights::bf16, m * n);
    std::vector<double> expected(m * n);
    const auto p = it.p.dense(), q = it.q.dense();
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0.97F * static_cast<double>(matrix.at(i * n + j));
        for (std::size_t a = 0; a < d; ++a) {
          for (std::size_t b = 0; b < d; ++b) sum += p[i * d + a] * it.delta[a * d + b] * q[j * d + b];
        }
        expected[i * n + j] = sum;
      }
    }
    apply(Weights::bf16, it.expansion, 0.97F, matrix.span(0, m * n), 0, it.work.data());
    for (std::size_t i = 0; i < m * n; ++i) ASSERT_NEAR(expected[i], matrix.at(i), 2e-5);
  }
}

TEST(Project, AppliesAsDenseMatrices) {
  for (const auto kind : kKinds) apply_as_dense(kind);
}

/// Small changes are lost to rounding to the nearest, and are not lost in the mean.
TEST(Project, WeightsWithoutRemaindersMoveByTheMeanOfTheirChange) {
  const std::size_t n = 4096;
  Rectangle it({1, 1, 1}, {n, 1, 1});
  for (auto* values : {&it.p, &it.q}) std::ranges::fill(values->values, 1.0F);
  it.delta[0] = 1.0F / 4096;  // a thirty-second of the distance of neighbours
  Matrix matrix(Weights::bf16, n, false);
  for (std::size_t i = 0; i < n; ++i) matrix.put(i, 1);
  for (it.expansion.step = 1; it.expansion.step <= 64; ++it.expansion.step) {
    apply(Weights::bf16, it.expansion, 1, matrix.span(0, n), 0, it.work.data());
  }
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += widen(reinterpret_cast<const std::uint16_t*>(matrix.weight.data())[i]);
  EXPECT_NEAR(sum / static_cast<double>(n), 1 + 64.0 / 4096, 0.0008);
}

TEST(Project, KeepsWhatIsNotANumber) {
  testing::on_every_target([] {
    for (const auto& [columns, remainder, kind] :
         std::initializer_list<std::tuple<std::size_t, bool, Kind>>{{8, true, Kind::blocks},
                                                                    {70, true, Kind::blocks},
                                                                    {70, false, Kind::blocks},
                                                                    {70, true, Kind::scattered}}) {
      const auto n = 8 * columns;
      Rectangle it({8, 4, 4}, {columns, 4, 4}, kind);
      it.delta[0] = NAN;
      Matrix expected(Weights::bf16, n, remainder), actual(Weights::bf16, n, remainder);
      for (auto* matrix : {&expected, &actual}) matrix->put(n - 1, INFINITY), matrix->put(n - 2, -INFINITY);
      scalar::apply(Weights::bf16, it.expansion, 1, expected.span(0, n), 0);
      apply(Weights::bf16, it.expansion, 1, actual.span(0, n), 0, it.work.data());
      EXPECT_TRUE(std::isnan(actual.at(0)));
      EXPECT_EQ(expected.weight, actual.weight);
      EXPECT_EQ(expected.remainder, actual.remainder);
    }
  });
}

TEST(Project, KeepsInfinities) {
  testing::on_every_target([] {
    const std::size_t n = 8 * 64;
    Rectangle it({8, 4, 4}, {64, 4, 4});
    Matrix expected(Weights::bf16, n), actual(Weights::bf16, n);
    for (auto* matrix : {&expected, &actual}) matrix->put(0, INFINITY), matrix->put(1, -INFINITY);
    scalar::apply(Weights::bf16, it.expansion, 1, expected.span(0, n), 0);
    apply(Weights::bf16, it.expansion, 1, actual.span(0, n), 0, it.work.data());
    EXPECT_EQ(INFINITY, actual.at(0));
    EXPECT_EQ(-INFINITY, actual.at(1));
    EXPECT_EQ(expected.weight, actual.weight);
    EXPECT_EQ(expected.remainder, actual.remainder);
  });
}

}  // namespace
}  // namespace spillway::kernels
