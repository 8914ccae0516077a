// RMSNorm, SwiGLU and rotary embedding have the same bits on every device, and are what double arithmetic says.
#include "spillway/device/fused.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "spillway/device/fused_threads.h"
#include "tests/device/device_work.h"

namespace spillway::device {
namespace {

/// Around groups of 8 elements, a warp's 32 lanes, and a warp of groups.
constexpr std::uint64_t kWidths[] = {1, 7, 8, 9, 31, 32, 33, 128, 255, 256, 257, 264, 1000};
constexpr std::uint64_t kRows[] = {0, 1, 15, 16, 17, 50};
constexpr std::uint64_t kFusedLengths[] = {0, 1, 7, 8, 9, 255, 256, 2047, 2048, 2049, 70001};

/// Where nothing begins at a multiple of 16 bytes, and where all does.
constexpr std::uint64_t kShifts[] = {0, 1};

class FusedWork : public DeviceWork {
 protected:
  /// Normal values as elements of `type`, `shift` elements behind a multiple of 16 bytes.
  Bytes put_usual(Image& image, Element type, std::uint64_t n, std::uint64_t shift) {
    return put_values(image, type, drawn(n + shift), shift);
  }
  /// Values of every size among them.
  Bytes put_odd(Image& image, Element type, std::uint64_t n, std::uint64_t shift) {
    return put_values(image, type, floats(n + shift), shift);
  }
  Bytes room_for(Image& image, Element type, std::uint64_t n, std::uint64_t shift) {
    return image.room<std::byte>((n + shift) * traits(type).bytes) + shift * traits(type).bytes;
  }

  struct NormCase {
    Element type;
    std::uint64_t rows, columns, shift;
    bool odd;
  };
  /// Calls body(case) for each shape.
  template <class Body>
  void for_each_norm(const Body& body) {
    for (const auto type : kTypes) {
      for (const auto shift : kShifts) {
        for (const auto columns : kWidths) body(NormCase{type, 5, columns, shift, false});
        for (const auto rows : kRows) body(NormCase{type, rows, 40, shift, true});
      }
    }
  }
  /// The norm of the case, on memory that begins at `base`.
  struct NormPlaces {
    NormCase of;
    Bytes values, weight;
    [[nodiscard]] RmsNorm on(std::byte* base) const {
      const bool early = of.rows % 2 == 1;
      return {of.type, base + values, base + weight, of.rows, of.columns, 1e-5F, early ? 0.0F : 1.0F, early};
    }
  };
  NormPlaces put_norm(Image& image, const NormCase& of) {
    const auto n = of.rows * of.columns;
    const auto values = of.odd ? put_odd(image, of.type, n, of.shift) : put_usual(image, of.type, n, of.shift);
    return {of, values, put_usual(image, of.type, of.columns, of.shift)};
  }

 private:
  static Bytes put_values(Image& image, Element type, const std::vector<float>& values, std::uint64_t shift) {
    std::vector<std::byte> out(values.size() * traits(type).bytes);
    static_cast<void>(round_norm(type, values.data(), out.data(), values.size()));
    return image.put(out) + shift * traits(type).bytes;
  }
};

TEST_P(FusedWork, Norms) {
  for_each_norm([&](const NormCase& of) {
    Image image;
    const auto norm = put_norm(image, of);
    const auto out = room_for(image, of.type, of.rows * of.columns, of.shift);
    expect_same(
        image,
        [&](std::byte* base) {
          return RmsNormForward{norm.on(base), base + out};
        },
        text("norm of ", of.rows, " x ", of.columns));
  });
}

TEST_P(FusedWork, NormsOfSums) {
  for_each_norm([&](const NormCase& of) {
    Image image;
    const auto norm = put_norm(image, of);
    const auto n = of.rows * of.columns;
    const auto addend = put_usual(image, of.type, n, of.shift);
    const auto out = room_for(image, of.type, n, of.shift), sum = room_for(image, of.type, n, of.shift);
    expect_same(
        image,
        [&](std::byte* base) {
          return RmsNormForward{norm.on(base), base + out, base + addend, base + sum};
        },
        text("norm of a sum of ", of.rows, " x ", of.columns));
  });
}

TEST_P(FusedWork, GradientsOfNorms) {
  for_each_norm([&](const NormCase& of) {
    Image image;
    const auto norm = put_norm(image, of);
    const auto n = of.rows * of.columns;
    const auto gradient = put_usual(image, of.type, n, of.shift), skip = put_usual(image, of.type, n, of.shift);
    const auto scales = image.put(drawn(2 * of.rows));
    const auto out = room_for(image, of.type, n, of.shift);
    const auto sums = image.room<float>(norm_tiles(of.rows) * of.columns + of.shift) + of.shift * sizeof(float);
    const auto words = text("gradient of a norm of ", of.rows, " x ", of.columns);
    expect_same(
        image,
        [&](std::byte* base) {
          return RmsNormScales{norm.on(base), base + gradient, at<float>(base, scales)};
        },
        words);
    for (const bool wanted : {true, false}) {
      expect_same(
          image,
          [&](std::byte* base) {
            return RmsNormBackward{norm.on(base),
                                   base + gradient,
                                   at<float>(base, scales),
                                   base + out,
                                   wanted ? at<float>(base, sums) : nullptr,
                                   wanted ? nullptr : base + skip};
          },
          words);
    }
  });
}

TEST_P(FusedWork, SumsOfTilesOfNorms) {
  for (const auto type : kTypes) {
    for (const std::uint64_t tiles : {0, 1, 31, 32, 33, 200}) {
      Image image;
      const std::uint64_t columns = 257;
      const auto sums = image.put(floats(tiles * columns));
      const auto out = room_for(image, type, columns, 0);
      expect_same(
          image,
          [&](std::byte* base) {
            return RmsNormWeight{type, at<float>(base, sums), tiles, columns, base + out};
          },
          text(tiles, " tiles"));
    }
  }
}

TEST_P(FusedWork, SwiGluBothWays) {
  for (const auto type : kTypes) {
    for (const auto shift : kShifts) {
      for (const auto n : kFusedLengths) {
        Image image;
        const auto gate = put_odd(image, type, n, shift), up = put_odd(image, type, n, shift);
        const auto gradient = put_odd(image, type, n, shift);
        const auto one = room_for(image, type, n, shift), other = room_for(image, type, n, shift);
        const auto product = room_for(image, type, n, shift);
        expect_same(
            image,
            [&](std::byte* base) {
              return SwiGlu{type, base + gate, base + up, base + one, n};
            },
            text("swiglu of ", n));
        for (const bool again : {false, true}) {
          expect_same(
              image,
              [&](std::byte* base) {
                return SwiGluBackward{type,
                                      base + gate,
                                      base + up,
                                      base + gradient,
                                      base + one,
                                      base + other,
                                      again ? base + product : nullptr,
                                      n};
              },
              text("gradient of swiglu of ", n, again ? ", and its output" : ""));
        }
      }
    }
  }
}

/// Heads beside each other in a token, as projections leave them, and one table for all sequences where `shared`.
Rotary heads_of_tokens(Element type, std::uint64_t half, bool shared) {
  Rotary out{.type = type, .sequences = 2, .heads = 3, .tokens = 5, .half = half};
  const auto size = 2 * half;
  out.in_strides = {out.tokens * out.heads * size, size, out.heads * size};
  out.out_strides = {out.heads * out.tokens * size, out.tokens * size, size};
  out.table_strides = {shared ? 0 : out.tokens * size, 0, size};
  return out;
}

TEST_P(FusedWork, RotationsBothWays) {
  for (const auto type : kTypes) {
    for (const auto shift : kShifts) {
      for (const std::uint64_t half : {1, 4, 8, 9, 32, 64}) {
        for (const bool backward : {false, true}) {
          Image image;
          auto rotary = heads_of_tokens(type, half, shift == 0);
          rotary.backward = backward;
          const auto n = rotary.sequences * rotary.heads * rotary.tokens * 2 * half;
          const auto in = put_odd(image, type, n, shift), out = room_for(image, type, n, shift);
          const auto cosines = put_usual(image, type, n, shift), sines = put_usual(image, type, n, shift);
          expect_same(
              image,
              [&](std::byte* base) {
                auto it = rotary;
                it.in = base + in, it.cosines = base + cosines, it.sines = base + sines, it.out = base + out;
                return it;
              },
              text("rotation of pairs of ", half));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedWork, ::testing::ValuesIn(device_kinds()),
                         [](const auto& test) { return test.param.name; });

/// Values of one type, and the doubles that they are.
class Values {
 public:
  Values(Element type, std::vector<float> values) : type_(type), bytes_(values.size() * traits(type).bytes) {
    static_cast<void>(round_norm(type, values.data(), bytes_.data(), values.size()));
  }
  Values(Element type, std::uint64_t n) : Values(type, std::vector<float>(n)) {}

  [[nodiscard]] double operator[](std::uint64_t i) const { return value_at(type_, bytes_.data(), i); }
  std::byte* data() { return bytes_.data(); }

 private:
  Element type_;
  std::vector<std::byte> bytes_;
};

class FusedArithmetic : public ::testing::TestWithParam<Element> {
 protected:
  static constexpr std::uint64_t kTokens = 37, kColumns = 200, kAll = kTokens * kColumns;

  Values normal(std::uint64_t n) {
    std::vector<float> out(n);
    for (auto& each : out) each = distribution_(random_);
    return {GetParam(), out};
  }
  /// one + other, each sum rounded.
  static Values added(const Values& one, const Values& other) {
    std::vector<float> out(kAll);
    for (std::uint64_t i = 0; i < kAll; ++i) out[i] = static_cast<float>(one[i] + other[i]);
    return {GetParam(), out};
  }
  /// Within a few roundings of values about as large as `scale`.
  void expect_near(double found, double expected, double scale = 1) {
    const double epsilon = GetParam() == Element::bf16 ? 0x1p-8 : GetParam() == Element::fp16 ? 0x1p-11 : 0x1p-22;
    ASSERT_NEAR(found, expected, 4 * epsilon * (std::abs(expected) + scale));
  }

 private:
  std::mt19937_64 random_{5};
  std::normal_distribution<float> distribution_;
};

TEST_P(FusedArithmetic, NormsAndTheirGradientsAreThoseOfDoubles) {
  for (const double offset : {0.0, 1.0}) {
    auto values = normal(kAll), weight = normal(kColumns), gradient = normal(kAll);
    Values out(GetParam(), kAll), to_values(GetParam(), kAll), to_weight(GetParam(), kColumns);
    const RmsNorm norm{GetParam(), values.data(), weight.data(), kTokens, kColumns, 1e-6F, static_cast<float>(offset),
                       offset == 0};
    std::vector<float> scales(2 * kTokens), sums(norm_tiles(kTokens) * kColumns);
    compute(RmsNormForward{norm, out.data()}, {});
    compute(RmsNormScales{norm, gradient.data(), scales.data()}, {});
    compute(RmsNormBackward{norm, gradient.data(), scales.data(), to_values.data(), sums.data()}, {});
    compute(RmsNormWeight{GetParam(), sums.data(), norm_tiles(kTokens), kColumns, to_weight.data()}, {});

    std::vector<double> expected_weight(kColumns);
    for (std::uint64_t first = 0; first < kAll; first += kColumns) {
      double squares = 0, along = 0;
      for (std::uint64_t i = 0; i < kColumns; ++i) squares += values[first + i] * values[first + i];
      const double inverse = 1 / std::sqrt(squares / kColumns + 1e-6);
      const auto weighted = [&](std::uint64_t i) { return gradient[first + i] * (offset + weight[i]); };
      for (std::uint64_t i = 0; i < kColumns; ++i) along += weighted(i) * values[first + i] * inverse / kColumns;
      for (std::uint64_t i = 0; i < kColumns; ++i) {
        const double normalised = values[first + i] * inverse;
        expect_near(out[first + i], normalised * (offset + weight[i]));
        expect_near(to_values[first + i], inverse * (weighted(i) - normalised * along), 1 + std::abs(weighted(i)));
        expected_weight[i] += gradient[first + i] * normalised;
      }
    }
    for (std::uint64_t i = 0; i < kColumns; ++i) expect_near(to_weight[i], expected_weight[i], kTokens);
  }
}

TEST_P(FusedArithmetic, NormsWithSkipConnectionsHaveTheBitsOfSeparateAdditions) {
  auto values = normal(kAll), addend = normal(kAll), weight = normal(kColumns), gradient = normal(kAll);
  auto skip = normal(kAll);
  Values sum(GetParam(), kAll), out(GetParam(), kAll), plain_out(GetParam(), kAll);
  auto plain_sum = added(values, addend);
  const auto norm_of = [&](Values& of) {
    return RmsNorm{GetParam(), of.data(), weight.data(), kTokens, kColumns, 1e-6F, 0, true};
  };
  compute(RmsNormForward{norm_of(values), out.data(), addend.data(), sum.data()}, {});
  compute(RmsNormForward{norm_of(plain_sum), plain_out.data()}, {});
  std::vector<float> scales(2 * kTokens);
  Values to_values(GetParam(), kAll), around(GetParam(), kAll);
  compute(RmsNormScales{norm_of(sum), gradient.data(), scales.data()}, {});
  compute(RmsNormBackward{norm_of(sum), gradient.data(), scales.data(), to_values.data(), nullptr}, {});
  compute(RmsNormBackward{norm_of(sum), gradient.data(), scales.data(), around.data(), nullptr, skip.data()}, {});
  const auto plain_around = added(to_values, skip);
  for (std::uint64_t i = 0; i < kAll; ++i) {
    ASSERT_EQ(sum[i], plain_sum[i]);
    ASSERT_EQ(out[i], plain_out[i]);
    ASSERT_EQ(around[i], plain_around[i]);
  }
}

TEST_P(FusedArithmetic, SwiGluAndItsGradientsAreThoseOfDoubles) {
  auto gate = normal(kAll), up = normal(kAll), gradient = normal(kAll);
  Values out(GetParam(), kAll), to_gate(GetParam(), kAll), to_up(GetParam(), kAll), again(GetParam(), kAll);
  compute(SwiGlu{GetParam(), gate.data(), up.data(), out.data(), kAll}, {});
  compute(SwiGluBackward{GetParam(), gate.data(), up.data(), gradient.data(), to_gate.data(), to_up.data(),
                         again.data(), kAll},
          {});
  for (std::uint64_t i = 0; i < kAll; ++i) {
    EXPECT_EQ(again[i], out[i]) << "the bits of the forward pass";
    const double share = 1 / (1 + std::exp(-gate[i])), silu = gate[i] * share;
    expect_near(out[i], silu * up[i]);
    expect_near(to_up[i], gradient[i] * silu);
    expect_near(to_gate[i], gradient[i] * up[i] * share * (1 + gate[i] * (1 - share)));
  }
}

TEST_P(FusedArithmetic, RotationIsThatOfDoublesAndBackwardItsTranspose) {
  constexpr std::uint64_t kHalf = 12;
  auto rotary = heads_of_tokens(GetParam(), kHalf, false);
  const auto n = 2 * 3 * 5 * 2 * kHalf;
  auto in = normal(n), gradient = normal(n), cosines = normal(n), sines = normal(n);
  Values out(GetParam(), n), back(GetParam(), n);
  rotary.cosines = cosines.data(), rotary.sines = sines.data();
  rotary.in = in.data(), rotary.out = out.data();
  compute(rotary, {});
  for (std::uint64_t sequence = 0; sequence < 2; ++sequence) {
    for (std::uint64_t head = 0; head < 3; ++head) {
      for (std::uint64_t token = 0; token < 5; ++token) {
        const auto from = ((sequence * 5 + token) * 3 + head) * 2 * kHalf, table = (sequence * 5 + token) * 2 * kHalf;
        const auto to = ((sequence * 3 + head) * 5 + token) * 2 * kHalf;
        for (std::uint64_t i = 0; i < kHalf; ++i) {
          const double low = in[from + i], high = in[from + i + kHalf];
          expect_near(out[to + i], low * cosines[table + i] - high * sines[table + i], 4);
          expect_near(out[to + i + kHalf], high * cosines[table + i + kHalf] + low * sines[table + i + kHalf], 4);
        }
      }
    }
  }
  std::swap(rotary.in_strides, rotary.out_strides);
  rotary.backward = true, rotary.in = gradient.data(), rotary.out = back.data();
  compute(rotary, {});
  double there = 0, here = 0;  // <gradient, rotated> = <gradient rotated back, in>
  for (std::uint64_t i = 0; i < n; ++i) there += gradient[i] * out[i], here += back[i] * in[i];
  const double epsilon = GetParam() == Element::bf16 ? 0x1p-8 : GetParam() == Element::fp16 ? 0x1p-11 : 0x1p-23;
  EXPECT_NEAR(there, here, epsilon * static_cast<double>(n));
}

TEST_P(FusedArithmetic, GradientsOfNormsDoNotDependOnTheGrid) {
  auto values = normal(kAll), weight = normal(kColumns), gradient = normal(kAll);
  const RmsNorm norm{GetParam(), values.data(), weight.data(), kTokens, kColumns, 1e-6F, 0, true};
  std::vector<float> scales(2 * kTokens);
  compute(RmsNormScales{norm, gradient.data(), scales.data()}, {});
  std::vector<std::vector<float>> all;
  for (const std::uint64_t grid : {1, 7, 1000}) {
    Values out(GetParam(), kAll);
    auto& sums = all.emplace_back(norm_tiles(kTokens) * kColumns);
    const RmsNormBackward it{norm, gradient.data(), scales.data(), out.data(), sums.data()};
    for (std::uint64_t thread = 0; thread < grid; ++thread) {
      if (GetParam() == Element::bf16) threads::differentiate_norms<threads::Bf16>(it, {thread, grid});
      if (GetParam() == Element::fp16) threads::differentiate_norms<kernels::Fp16>(it, {thread, grid});
      if (GetParam() == Element::fp32) threads::differentiate_norms<float>(it, {thread, grid});
    }
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
}

INSTANTIATE_TEST_SUITE_P(Types, FusedArithmetic, ::testing::ValuesIn(kTypes),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace spillway::device
