// fp16: the conversions, and the kernels of gradients and logits in it against their scalar references.
#include "spillway/kernels/fp16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "spillway/kernels/gradient.h"
#include "spillway/kernels/softmax.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::bits_of;
using testing::expect_same;
using testing::lengths_and_tiles;
using testing::numbers;

std::vector<std::uint16_t> every_pattern() {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

TEST(Fp16, EveryPatternSurvives) {
  for (const std::uint16_t pattern : every_pattern()) {
    const bool nan = (pattern & 0x7FFF) > 0x7C00;
    ASSERT_EQ(round_fp16(widen_fp16(pattern)), nan ? kFp16NaN : pattern);
    ASSERT_EQ(std::isnan(widen_fp16(pattern)), nan);
  }
  EXPECT_EQ(widen_fp16(0x3C00), 1.0f);
  EXPECT_EQ(widen_fp16(0xC580), -5.5f);
  EXPECT_EQ(widen_fp16(0x0001), 0x1p-24f);
  EXPECT_EQ(widen_fp16(0x7BFF), 65504.0f);
}

// Half way between two neighbours goes to the even one, the next float on either side to the nearer one.
TEST(Fp16, RoundsToNearestEven) {
  for (std::uint32_t low = 0; low < 0x7C00; ++low) {
    const float a = widen_fp16(static_cast<std::uint16_t>(low));
    const float b = low == 0x7BFF ? 65536.0f : widen_fp16(static_cast<std::uint16_t>(low + 1));
    const float middle = (a + b) / 2;
    ASSERT_EQ(round_fp16(middle), low + (low & 1)) << middle;
    ASSERT_EQ(round_fp16(-middle), (low + (low & 1)) | 0x8000) << middle;
    ASSERT_EQ(round_fp16(std::nextafter(middle, 0.0f)), low) << middle;
    ASSERT_EQ(round_fp16(std::nextafter(middle, 1e9f)), low + 1) << middle;
  }
}

void expect_gradients_like_scalar(const std::vector<std::uint16_t>& halves, const std::vector<float>& floats,
                                  std::size_t offset) {
  const std::size_t n = halves.size() - offset;
  std::vector<std::uint16_t> expected16(halves.size()), actual16(halves.size());
  const auto compare16 = [&](const Norm& expected, const Norm& actual) {
    ASSERT_EQ(bits_of(expected.sum), bits_of(actual.sum));
    expect_same(expected16, actual16);
  };
  compare16(scalar::copy_norm_fp16(halves.data() + offset, expected16.data() + offset, n),
            copy_norm_fp16(halves.data() + offset, actual16.data() + offset, n));
  compare16(scalar::round_norm_fp16(floats.data() + offset, expected16.data() + offset, n),
            round_norm_fp16(floats.data() + offset, actual16.data() + offset, n));
  auto expected = floats, actual = floats;
  scalar::add_fp16(halves.data() + offset, expected.data() + offset, n);
  add_fp16(halves.data() + offset, actual.data() + offset, n);
  expect_same(expected, actual);
  scalar::widen_fp16(halves.data() + offset, expected.data() + offset, n);
  widen_fp16(halves.data() + offset, actual.data() + offset, n);
  expect_same(expected, actual);
}

/// Floats of the magnitudes of fp16, its denormals and a little beyond, and special ones.
std::vector<float> floats_around_fp16(std::size_t n, std::uint32_t rarity) {
  auto all = numbers<float>(n, 0, 11, rarity);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t h = testing::mix(static_cast<std::uint32_t>(i));
    if (rarity == 0 || h % rarity != 0) {
      all[i] = std::bit_cast<float>((h & 0x807FFFFF) | (100 + testing::mix(h) % 44) << 23);
    }
  }
  return all;
}

TEST(Fp16, GradientsAsScalar) {
  testing::on_every_target([] {
    for (const std::size_t n : lengths_and_tiles()) {
      for (const std::size_t offset : {0, 1, 3}) {
        SCOPED_TRACE(::testing::Message() << n << " elements behind " << offset);
        std::vector<std::uint16_t> halves(n + offset);
        for (std::size_t i = 0; i < halves.size(); ++i) {
          halves[i] = static_cast<std::uint16_t>(testing::mix(static_cast<std::uint32_t>(i + n)));
        }
        expect_gradients_like_scalar(halves, floats_around_fp16(n + offset, offset == 0 ? 0 : 30), offset);
      }
    }
    expect_gradients_like_scalar(every_pattern(), floats_around_fp16(65536, 0), 0);
  });
}

TEST(Fp16, ANormIsFiniteExactlyWhenEveryRoundedElementIs) {
  std::vector<float> in(100, 65504.0f);
  std::vector<std::uint16_t> out(100);
  EXPECT_TRUE(round_norm_fp16(in.data(), out.data(), in.size()).finite());
  in[70] = 65520.0f;
  EXPECT_FALSE(round_norm_fp16(in.data(), out.data(), in.size()).finite());
  EXPECT_EQ(out[70], 0x7C00);
}

std::vector<std::uint16_t> logits_of(std::size_t n, bool special) {
  std::vector<std::uint16_t> all(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t h = testing::mix(static_cast<std::uint32_t>(i + 7 * n));
    all[i] = round_fp16(static_cast<float>(h % 400001) * 1e-4f - 20);
    if (special && h % 50 == 0) all[i] = static_cast<std::uint16_t>(testing::mix(h) | 0x7C00);
  }
  return all;
}

TEST(Fp16, SoftmaxAsScalar) {
  testing::on_every_target([] {
    for (const std::size_t n : testing::lengths()) {
      for (const bool special : {false, true}) {
        SCOPED_TRACE(::testing::Message() << n << " logits, special " << special);
        const auto logits = logits_of(n, special);
        float expected[2] = {3, 2.5f}, actual[2] = {3, 2.5f};
        scalar::softmax_stats_fp16(logits.data(), n, &expected[0], &expected[1]);
        softmax_stats_fp16(logits.data(), n, &actual[0], &actual[1]);
        ASSERT_EQ(bits_of(expected[0]), bits_of(actual[0]));
        ASSERT_EQ(bits_of(expected[1]), bits_of(actual[1]));
        for (const std::size_t label : {std::size_t{0}, n / 2, n}) {
          auto wanted = logits, got = logits;
          scalar::softmax_gradient_fp16(wanted.data(), n, {19.5f, 0.5f}, 0.125f, label);
          softmax_gradient_fp16(got.data(), n, {19.5f, 0.5f}, 0.125f, label);
          expect_same(wanted, got);
        }
      }
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
