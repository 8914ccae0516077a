// Scales that are codes: each the nearest that the dynamic map has, the same bits in parts and in whole.
#include "spillway/kernels/nested_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "spillway/kernels/packed.h"

namespace spillway::kernels {
namespace {

constexpr auto kNested = Encoding::nf4_nested;
constexpr auto kGroup = kNestedBlocks * kPackedBlock;

std::vector<float> some_weights(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 0.02F);
  std::vector<float> out(n);
  for (auto& value : out) value = draw(random);
  return out;
}

float mean_of(const std::vector<float>& values) {
  ScaleMean mean;
  mean.add(values.data(), values.size());
  return mean.mean();
}

std::vector<std::byte> packed(const std::vector<float>& in, std::uint64_t all) {
  std::vector<std::byte> out(encoded_bytes(kNested, all));
  pack(kNested, in.data(), out.data(), all, 0, in.size(), mean_of(in));
  return out;
}

TEST(NestedScales, TheMapRisesAndIsOddButForItsLargest) {
  for (unsigned code = 1; code < 256; ++code) {
    const auto own = static_cast<std::uint8_t>(code);
    EXPECT_LT(scalar::dynamic_value(static_cast<std::uint8_t>(code - 1)), scalar::dynamic_value(own)) << code;
    if (code == 255) continue;
    EXPECT_EQ(scalar::dynamic_value(own), -scalar::dynamic_value(static_cast<std::uint8_t>(254 - code))) << code;
  }
  EXPECT_EQ(scalar::dynamic_value(127), 0);
  EXPECT_EQ(scalar::dynamic_value(255), 1);
}

TEST(NestedScales, ACodeIsTheNearestOfAll) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> draw(0.01F, 0.09F);
  std::vector<float> scales(2 * kNestedBlocks + 17), back(scales.size());
  for (auto& scale : scales) scale = draw(random);
  const float mean = 0.04F;
  std::vector<std::uint8_t> codes(scales.size());
  std::vector<ScaleGroup> groups(3);
  pack_scales(scales.data(), scales.size(), mean, codes.data(), groups.data());
  unpack_scales(codes.data(), groups.data(), 0, scales.size(), back.data());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const auto& group = groups[i / kNestedBlocks];
    EXPECT_EQ(group.offset, mean);
    EXPECT_EQ(back[i], scalar::dynamic_value(codes[i]) * group.scale + mean);
    const float x = (scales[i] - mean) / group.scale;
    float nearest = 2;
    for (unsigned code = 0; code < 256; ++code) {
      nearest = std::min(nearest, std::abs(scalar::dynamic_value(static_cast<std::uint8_t>(code)) - x));
    }
    ASSERT_EQ(std::abs(scalar::dynamic_value(codes[i]) - x), nearest) << i;
  }
}

TEST(NestedScales, ScalesThatAreEqualAreKeptExactly) {
  std::vector<float> scales(kNestedBlocks, 0.25F), back(scales.size());
  std::vector<std::uint8_t> codes(scales.size());
  ScaleGroup group;
  pack_scales(scales.data(), scales.size(), 0.25F, codes.data(), &group);
  unpack_scales(codes.data(), &group, 0, scales.size(), back.data());
  EXPECT_EQ(back, scales);
}

TEST(NestedScales, CodesOfValuesAreThoseOfScalesInFp32) {
  const auto in = some_weights(2 * kGroup - 100, 5);
  const auto array = packed(in, 2 * kGroup);
  std::vector<std::uint8_t> codes(code_bytes(Encoding::nf4, in.size()));
  std::vector<float> scales(in.size() / kPackedBlock + 1);
  pack_nf4(in.data(), in.size(), codes.data(), scales.data());
  const auto parts = nested_parts(array.data(), 2 * kGroup);
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), parts.codes));
  for (std::size_t b = 0; b < scales.size(); ++b) {
    ASSERT_NEAR(scalar::nested_scale(parts.scales, parts.groups, b), scales[b], 0.01F * scales[b] + 1e-4F) << b;
  }
}

TEST(NestedScales, PartsAreThoseOfTheWholeWhoeverUnpacksThem) {
  const auto in = some_weights(3 * kGroup, 7);
  const auto whole = packed(in, in.size());
  std::vector<std::byte> parts(whole.size());
  for (std::size_t first = 0; first < in.size(); first += kGroup) {
    pack(kNested, in.data() + first, parts.data(), in.size(), first, kGroup, mean_of(in));
  }
  EXPECT_EQ(whole, parts);
  for (const std::size_t first : {std::size_t{0}, std::size_t{64}, kGroup - 64, 2 * kGroup + 640}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{63}, std::size_t{200}, kGroup - 640}) {
      std::vector<float> out(n);
      std::vector<std::uint16_t> narrow(n);
      unpack(kNested, whole.data(), in.size(), first, n, out.data());
      unpack(kNested, whole.data(), in.size(), first, n, narrow.data());
      for (std::size_t i = 0; i < n; ++i) {
        const auto expected = scalar::packed_value(kNested, whole.data(), in.size(), first + i);
        ASSERT_EQ(out[i], expected) << first << ", " << i;
        ASSERT_EQ(narrow[i], round_bf16(expected)) << first << ", " << i;
      }
    }
  }
}

TEST(NestedScales, TheMeanIsThatOfAllBlocksHoweverValuesAreAdded) {
  const auto in = some_weights(1000, 9);
  ScaleMean mean;
  for (std::size_t first = 0; first < in.size(); first += 128) {
    mean.add(in.data() + first, std::min<std::size_t>(128, in.size() - first));
  }
  double sum = 0;
  for (std::size_t first = 0; first < in.size(); first += kPackedBlock) {
    float largest = 0;
    for (auto i = first; i < std::min<std::size_t>(first + kPackedBlock, in.size()); ++i) {
      largest = std::max(largest, std::abs(in[i]));
    }
    sum += largest;
  }
  EXPECT_EQ(mean.values(), in.size());
  EXPECT_EQ(mean.mean(), static_cast<float>(sum / 16));
  EXPECT_EQ(mean.mean(), mean_of(in));
  EXPECT_EQ(ScaleMean().mean(), 0);
}

}  // namespace
}  // namespace spillway::kernels
