#include "spillway/state/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

using kernels::Element;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Finite, EveryPlaceIsLookedAt) {
  for (const std::size_t size : {1, 2, 7, 16, 17, 1000}) {
    std::vector<float> values(size, -1.5F);
    EXPECT_FALSE(find_not_finite(values, Element::bf16));
    for (std::size_t at = 0; at < size; ++at) {
      for (const float bad : {kInfinity, -kInfinity, kNaN, -kNaN}) {
        values[at] = bad;
        for (const auto type : {Element::bf16, Element::fp16, Element::fp32}) {
          EXPECT_EQ(find_not_finite(values, type), at);
        }
      }
      values[at] = -1.5F;
    }
  }
  EXPECT_FALSE(find_not_finite(std::span<const float>{}, Element::fp32));
}

TEST(Finite, TheLargestThatATypeHoldsIsFinite) {
  const auto next = [](float value) { return std::nextafter(value, kInfinity); };
  const float fp16 = std::nextafter(65520.0F, 0.0F), bf16 = kernels::as_float(0x7F7F7FFF);
  ASSERT_EQ(kernels::round_fp16(fp16) & 0x7FFF, 0x7BFF);
  ASSERT_EQ(kernels::round_fp16(next(fp16)), 0x7C00);
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_FALSE(find_not_finite(std::vector{sign * fp16}, Element::fp16));
    EXPECT_TRUE(find_not_finite(std::vector{sign * next(fp16)}, Element::fp16));
    EXPECT_FALSE(find_not_finite(std::vector{sign * bf16}, Element::bf16));
    EXPECT_TRUE(find_not_finite(std::vector{sign * next(bf16)}, Element::bf16));
    EXPECT_FALSE(find_not_finite(std::vector{sign * std::numeric_limits<float>::max()}, Element::fp32));
  }
}

TEST(Finite, StoredWeightsAreLookedAtInTheirType) {
  constexpr std::size_t kCount = 70'000;
  std::vector<std::uint16_t> halves(kCount, 0x3C00);
  const auto* const at = reinterpret_cast<const std::byte*>(halves.data());
  EXPECT_FALSE(find_not_finite(at, kCount, Element::fp16));
  halves[69'001] = 0xFC00;
  EXPECT_EQ(find_not_finite(at, kCount, Element::fp16), 69'001U);
  EXPECT_FALSE(find_not_finite(at, kCount, Element::bf16));  // -2.7e36 there
  halves[3] = 0x7F81;
  EXPECT_EQ(find_not_finite(at, kCount, Element::bf16), 3U);
}

TEST(Finite, RefusalNamesTensorAndIndex) {
  expect_error(ErrorCode::bad_input, {"tensor w in dir/model.safetensors", "NaN", "[1, 2]"}, [] {
    refuse_not_finite({"w", {3, 4}, 6, kNaN}, "dir/model.safetensors");
  });
  expect_error(ErrorCode::bad_input, {"-infinity", "[]"}, [] { refuse_not_finite({"s", {}, 0, -kInfinity}, ""); });
  expect_error(ErrorCode::bad_input, {"70000", "[5]", "weight_dtype"}, [] {
    refuse_not_finite({"s", {9}, 5, 70'000}, "");
  });
}

}  // namespace
}  // namespace spillway::state
