// Weights of 4 and 8 bits: every instruction set as the scalar reference, and codes that are the nearest there are.
#include "spillway/kernels/packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

constexpr float kUnbounded = std::numeric_limits<float>::infinity();

std::vector<std::uint8_t> random_codes(std::size_t n, std::uint32_t seed) {
  std::vector<std::uint8_t> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(testing::mix(seed + static_cast<unsigned>(i)));
  return out;
}

/// Usual ones, and those that overflow, vanish or are no numbers.
std::vector<float> scales_of(std::size_t blocks, std::uint32_t seed) {
  constexpr float kOdd[] = {0.0F, 1e-42F, 3.4e38F, kUnbounded, std::numeric_limits<float>::quiet_NaN(), 65504.0F};
  std::vector<float> out(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto bits = testing::mix(seed * 31 + static_cast<unsigned>(b));
    out[b] = bits % 4 == 0 ? kOdd[bits / 4 % std::size(kOdd)] : static_cast<float>(bits % 1000) / 997.0F;
  }
  return out;
}

bool equal_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
bool equal_bits(std::uint16_t a, std::uint16_t b) {
  return a == b;
}
bool equal_bits(Fp16 a, Fp16 b) {
  return a.bits == b.bits;
}

template <class T>
void expect_as_scalar(std::size_t n, std::size_t offset) {
  const auto codes = random_codes(n + 3, static_cast<std::uint32_t>(n));
  const auto scales = scales_of(n / kPackedBlock + 1, static_cast<std::uint32_t>(n));
  const auto* const int8 = reinterpret_cast<const std::int8_t*>(codes.data());
  std::vector<T> found(n + offset), expected(n + offset);
  const auto compare = [&](const char* words) {
    for (std::size_t i = 0; i < n + offset; ++i)
      ASSERT_TRUE(equal_bits(found[i], expected[i])) << words << ", value " << i;
  };
  unpack_nf4(codes.data() + offset % 2, scales.data(), found.data() + offset, n);
  scalar::unpack_nf4(codes.data() + offset % 2, scales.data(), expected.data() + offset, n);
  compare("nf4");
  unpack_int8(int8 + offset % 2, scales.data(), found.data() + offset, n);
  scalar::unpack_int8(int8 + offset % 2, scales.data(), expected.data() + offset, n);
  compare("int8");
}

TEST(Packed, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([] {
    auto lengths = testing::lengths();
    for (const std::size_t n : {63, 64, 65, 127, 128, 129, 191, 192, 640, 1000}) lengths.push_back(n);
    for (const auto n : lengths) {
      for (const std::size_t offset : {0, 1, 3}) {
        expect_as_scalar<std::uint16_t>(n, offset);
        expect_as_scalar<Fp16>(n, offset);
        expect_as_scalar<float>(n, offset);
      }
    }
  });
}

std::vector<float> normal_weights(std::size_t n, float scale) {
  std::mt19937_64 random(n);
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> out(n);
  for (auto& value : out) value = draw(random);
  return out;
}

TEST(Packed, Nf4TakesTheNearestOfItsValues) {
  const auto in = normal_weights(1000, 0.02F);
  const auto blocks = (in.size() + kPackedBlock - 1) / kPackedBlock;
  std::vector<std::uint8_t> codes(code_bytes(Encoding::nf4, in.size()));
  std::vector<float> scales(blocks), out(in.size());
  pack_nf4(in.data(), in.size(), codes.data(), scales.data());
  unpack_nf4(codes.data(), scales.data(), out.data(), out.size());
  for (std::size_t b = 0; b < blocks; ++b) {
    float largest = 0;
    for (auto i = b * kPackedBlock; i < std::min(in.size(), (b + 1) * kPackedBlock); ++i) {
      largest = std::max(largest, std::abs(in[i]));
    }
    EXPECT_EQ(scales[b], largest);
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto scale = scales[i / kPackedBlock];
    float nearest = kUnbounded;
    for (const auto value : kNf4.values) nearest = std::min(nearest, std::abs(value * scale - in[i]));
    ASSERT_NEAR(std::abs(out[i] - in[i]), nearest, 1e-6F * scale) << i;
  }
}

/// Two values and the byte that bitsandbytes makes of them: the first in the upper half.
TEST(Packed, Nf4PacksTheFirstOfTwoValuesAbove) {
  const float in[] = {-1, 1, 0, 0.08F, 0.5F};
  std::uint8_t codes[3];
  float scale = 0;
  pack_nf4(in, 5, codes, &scale);
  EXPECT_EQ(scale, 1);
  EXPECT_EQ(codes[0], 0x0F);
  EXPECT_EQ(codes[1], 0x78);
  EXPECT_EQ(codes[2] >> 4, 0xC);
}

TEST(Packed, Int8IsWithinHalfAStep) {
  const auto in = normal_weights(777, 3);
  std::vector<std::int8_t> codes(in.size());
  std::vector<float> scales(in.size() / kPackedBlock + 1), out(in.size());
  pack_int8(in.data(), in.size(), codes.data(), scales.data());
  unpack_int8(codes.data(), scales.data(), out.data(), out.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_LE(std::abs(out[i] - in[i]), 0.5001F * scales[i / kPackedBlock]) << i;
  }
}

/// What is packed and unpacked stays as it is from then on: of int8 to a unit of rounding, of nf4 exactly.
TEST(Packed, PackingWhatWasUnpackedChangesNothing) {
  const auto in = normal_weights(640, 1);
  for (const auto encoding : {Encoding::nf4, Encoding::int8}) {
    std::vector<std::byte> first(encoded_bytes(encoding, in.size())), second(first.size());
    std::vector<float> once(in.size()), twice(in.size());
    pack(encoding, in.data(), first.data(), in.size(), 0, in.size());
    unpack(encoding, first.data(), in.size(), 0, in.size(), once.data());
    pack(encoding, once.data(), second.data(), in.size(), 0, in.size());
    unpack(encoding, second.data(), in.size(), 0, in.size(), twice.data());
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_NEAR(once[i], twice[i], 1e-6F) << i;
  }
}

TEST(Packed, WhatHasNoScaleIsZeroAndWhatIsNoNumberStaysNone) {
  std::vector<float> in(4 * kPackedBlock), out(in.size());
  in[3] = 1e-44F;                                              // of the first block the inverse overflows
  std::fill_n(in.begin() + kPackedBlock, kPackedBlock, 0.0F);  // of the second, too
  in[2 * kPackedBlock + 7] = std::numeric_limits<float>::quiet_NaN();
  in[3 * kPackedBlock + 9] = kUnbounded;
  for (const auto encoding : {Encoding::nf4, Encoding::int8}) {
    std::vector<std::byte> packed(encoded_bytes(encoding, in.size()));
    pack(encoding, in.data(), packed.data(), in.size(), 0, in.size());
    unpack(encoding, packed.data(), in.size(), 0, in.size(), out.data());
    for (std::size_t i = 0; i < 2 * kPackedBlock; ++i) ASSERT_EQ(out[i], 0) << i;
    for (std::size_t i = 2 * kPackedBlock; i < 3 * kPackedBlock; ++i) ASSERT_TRUE(std::isnan(out[i])) << i;
    EXPECT_FALSE(std::isfinite(out[3 * kPackedBlock + 9]));
  }
}

TEST(Packed, APartOfAnArrayIsThatOfTheWhole) {
  const auto in = normal_weights(640, 1);
  for (const auto encoding : {Encoding::nf4, Encoding::int8}) {
    std::vector<std::byte> whole(encoded_bytes(encoding, in.size())), parts(whole.size());
    pack(encoding, in.data(), whole.data(), in.size(), 0, in.size());
    for (std::size_t first = 0; first < in.size(); first += 128) {
      pack(encoding, in.data() + first, parts.data(), in.size(), first, 128);
    }
    EXPECT_EQ(whole, parts);
    std::vector<float> all(in.size()), some(192);
    unpack(encoding, whole.data(), in.size(), 0, in.size(), all.data());
    unpack(encoding, whole.data(), in.size(), 256, some.size(), some.data());
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i], all[256 + i]);
      ASSERT_EQ(some[i], scalar::packed_value(encoding, whole.data(), in.size(), 256 + i));
    }
  }
}

}  // namespace
}  // namespace spillway::kernels
