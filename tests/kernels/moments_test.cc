// Moments in 16 and 8 bits from and to fp32: against scalar references, and what the codes promise.
#include "spillway/kernels/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "spillway/kernels/random.h"
#include "spillway/kernels/update.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::expect_same;
using testing::numbers;

constexpr Moment kBoth[] = {Moment::first, Moment::second};

std::vector<std::size_t> lengths() {
  auto all = testing::lengths();
  for (const std::size_t n : {255, 256, 257, 1000}) all.push_back(n);
  return all;
}

void expect_bf16_like_scalar(std::size_t n, std::size_t offset, std::uint32_t rarity) {
  const auto values = numbers<float>(n, offset, 3, rarity);
  std::vector<std::uint16_t> expected(n + offset), actual(n + offset);
  scalar::encode_bf16(values.data() + offset, expected.data() + offset, n);
  encode_bf16(values.data() + offset, actual.data() + offset, n);
  expect_same(expected, actual);
  const auto patterns = numbers<std::uint16_t>(n, offset, 4, rarity);
  std::vector<float> wanted(n + offset), got(n + offset);
  scalar::decode_bf16(patterns.data() + offset, wanted.data() + offset, n);
  decode_bf16(patterns.data() + offset, got.data() + offset, n);
  expect_same(wanted, got);
}

void expect_int8_like_scalar(Moment moment, std::size_t n, std::size_t offset, std::uint32_t rarity) {
  const auto values = numbers<float>(n, offset, 3, rarity);
  const std::size_t blocks = (n + kQuantBlock - 1) / kQuantBlock;
  std::vector<std::uint8_t> expected(n + offset), actual(n + offset);
  std::vector<float> expected_scales(blocks), scales(blocks), wanted(n + offset), got(n + offset);
  scalar::encode_int8(moment, values.data() + offset, expected.data() + offset, expected_scales.data(), n);
  encode_int8(moment, values.data() + offset, actual.data() + offset, scales.data(), n);
  expect_same(expected_scales, scales);
  ASSERT_EQ(expected, actual);
  scalar::decode_int8(moment, actual.data() + offset, scales.data(), wanted.data() + offset, n);
  decode_int8(moment, actual.data() + offset, scales.data(), got.data() + offset, n);
  expect_same(wanted, got);
}

TEST(Moments, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([] {
    for (const std::size_t n : lengths()) {
      for (const std::size_t offset : {0, 1, 3}) {
        for (const std::uint32_t rarity : {0, 3, 300}) {
          SCOPED_TRACE(::testing::Message() << n << " elements behind " << offset << ", rarity " << rarity);
          expect_bf16_like_scalar(n, offset, rarity);
          for (const Moment moment : kBoth) expect_int8_like_scalar(moment, n, offset, rarity);
        }
      }
    }
  });
}

/// One block of 256 values, one for each code.
std::vector<float> every_code(Moment moment, float scale) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  std::vector<float> values(256);
  decode_int8(moment, codes.data(), &scale, values.data(), 256);
  return values;
}

TEST(Int8, EveryCodeSurvivesWhateverItIsRoundedWith) {
  for (const Moment moment : kBoth) {
    for (const float scale : {0x1p-100f, 0x1p-30f, 1.0f, 0x1p125f}) {
      const auto values = every_code(moment, scale);
      std::vector<std::uint8_t> codes(256);
      float again = 0;
      encode_int8(moment, values.data(), codes.data(), &again, 256);
      EXPECT_EQ(again, scale);
      for (std::size_t i = 0; i < 256; ++i) {
        if (moment == Moment::first && i == 128) continue;  // the other code of 0
        ASSERT_EQ(codes[i], i) << values[i];
        for (const std::uint32_t random : {0u, kCodeHalf, (1u << kCodeShift) - 1}) {
          const float scaled = values[i] * block_reciprocal(scale);
          ASSERT_EQ(moment == Moment::first ? encode_first(scaled, random) : encode_second(scaled, random), i);
        }
      }
    }
  }
}

TEST(Int8, StepsAreAsNarrowAsPromised) {
  const auto first = every_code(Moment::first, 1.0f), second = every_code(Moment::second, 1.0f);
  EXPECT_EQ(first[0], 0.0f);
  EXPECT_EQ(first[1], 0x1p-11f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(first[128]), 0u);  // not -0
  EXPECT_EQ(second[0], kSecondLowest);                      // no zero
  for (std::size_t i = 1; i < 256; ++i) EXPECT_LE(second[i] - second[i - 1], second[i - 1] / 16) << i;
  for (std::size_t i = 1; i < 128; ++i) {
    EXPECT_LE(first[i] - first[i - 1], first[i - 1] / 16 + 0x1p-11f) << i;
    EXPECT_EQ(first[i + 128], -first[i]);
  }
}

TEST(Int8, RoundingIsUnbiased) {
  const auto mean_of = [](const auto& code_of) {
    double sum = 0;
    for (std::uint32_t random = 0; random < 1u << kCodeShift; random += 16) sum += code_of(random);
    return sum / ((1u << kCodeShift) / 16.0);
  };
  for (const float value : {0.7f, 1.2345f, 0.001f, 0.01f, 0.3f}) {
    EXPECT_NEAR(mean_of([&](auto r) { return decode_first(encode_first(value, r), 1); }), value, value * 1e-5 + 1e-7);
    EXPECT_NEAR(mean_of([&](auto r) { return decode_first(encode_first(-value, r), 1); }), -value, value * 1e-5 + 1e-7);
    EXPECT_NEAR(mean_of([&](auto r) { return decode_second(encode_second(value, r), 1); }), value, value * 1e-5);
  }
}

TEST(Int8, ZeroStaysZeroAndWhatIsNotFiniteIsSeen) {
  for (const Moment moment : kBoth) {
    std::vector<float> values(300), decoded(300);
    std::vector<std::uint8_t> codes(300);
    std::vector<float> scales(2);
    encode_int8(moment, values.data(), codes.data(), scales.data(), 300);
    EXPECT_EQ(scales, (std::vector<float>{0, 0}));
    values[280] = INFINITY;
    encode_int8(moment, values.data(), codes.data(), scales.data(), 300);
    decode_int8(moment, codes.data(), scales.data(), decoded.data(), 300);
    EXPECT_EQ(decoded[0], 0.0f);
    EXPECT_TRUE(std::isnan(decoded[256]));
  }
}

TEST(MomentFormats, ConvertAsTheirRowsSay) {
  std::vector<float> values(300), back(300), scales(2);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.5f + static_cast<float>(i) / 601;
  const float error[] = {0, 0x1p-9f, 0x1p-5f};
  for (const auto moments : {Moments::exact, Moments::bf16, Moments::int8}) {
    const auto& it = traits(moments);
    std::vector<std::byte> bytes(values.size() * it.bytes);
    auto* const at = it.is_scaled ? scales.data() : nullptr;
    for (const std::size_t k : {0, 1}) {
      it.encode(k, values.data(), bytes.data(), at, values.size());
      it.decode(k, bytes.data(), at, back.data(), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(back[i], values[i], error[static_cast<std::size_t>(moments)]) << it.name << " " << k << " " << i;
      }
    }
  }
}

// A second moment far below the largest of its block is kept above 0: the update stays small.
TEST(Int8, ASmallSecondMomentDoesNotBlowTheUpdateUp) {
  constexpr std::size_t n = kQuantBlock;
  std::vector<float> weight(n), grad(n, 1e-6f), scales(2);
  grad[0] = 1;
  std::vector<std::uint8_t> m(n), v(n);
  const auto bytes = [](auto& of) { return reinterpret_cast<std::byte*>(of.data()); };
  for (std::int64_t step = 1; step <= 50; ++step) {
    const auto before = weight;
    update({Weights::fp32, Moments::int8},
           {.weight = bytes(weight),
            .moments = {bytes(m), bytes(v)},
            .scales = {&scales[0], &scales[1]},
            .grad = bytes(grad),
            .n = n},
           {.learning_rate = 1, .step = step, .seed = 1});
    for (std::size_t i = 0; i < n; ++i) ASSERT_LT(std::abs(weight[i] - before[i]), 2) << i << ", step " << step;
  }
}

}  // namespace
}  // namespace spillway::kernels
