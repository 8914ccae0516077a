#include "spillway/state/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/state/files.h"

namespace spillway::state {
namespace {

template <class T>
std::vector<float> converted(const std::string& dtype, const std::vector<T>& values) {
  // One byte off, so that no conversion may count on alignment.
  std::string bytes(1, 'x');
  bytes += raw(values);
  std::vector<float> out(values.size());
  to_fp32(dtype, reinterpret_cast<const std::byte*>(bytes.data()) + 1, values.size(), out.data());
  return out;
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> out(65536);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint16_t>(i);
  return out;
}

TEST(DType, EveryBf16IsTheUpperHalfOfAFloat) {
  const auto floats = converted("BF16", all_patterns());
  for (std::uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), i << 16U) << i;
}

TEST(DType, EveryFp16HasTheValueItsBitsSay) {
  const auto floats = converted("F16", all_patterns());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto exponent = static_cast<int>((i >> 10U) & 31U);
    const double fraction = i & 1023U;
    const double sign = (i >> 15U) != 0 ? -1 : 1;
    ASSERT_EQ(std::signbit(floats[i]), sign < 0) << i;
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(floats[i])) << i;
      ASSERT_EQ((std::bit_cast<std::uint32_t>(floats[i]) >> 13U) & 1023U, i & 1023U) << "payload of " << i;
    } else if (exponent == 31) {
      ASSERT_TRUE(std::isinf(floats[i])) << i;
    } else {
      const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(static_cast<double>(floats[i]), sign * value) << i;
    }
  }
}

TEST(DType, Fp32PassesUnchanged) {
  const std::vector<std::uint32_t> bits{0, 0x80000000U, 1, 0x7FA00001U, 0x3F800001U, 0xFF800000U};
  const auto floats = converted("F32", bits);
  for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(std::bit_cast<std::uint32_t>(floats[i]), bits[i]);
}

TEST(DType, Fp64IsRoundedToNearestEven) {
  const auto floats = converted<double>("F64", {1 + 0x1p-24, 1 + 0x3p-24, 0x1p-149, 1e300, -0.0});
  EXPECT_EQ(floats[0], 1.0F);
  EXPECT_EQ(floats[1], 1 + 0x1p-22F);
  EXPECT_EQ(floats[2], std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(floats[3], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(floats[4]));
}

TEST(DType, NothingIsNothing) {
  for (const auto* type : {"BF16", "F16", "F32", "F64"}) to_fp32(type, nullptr, 0, nullptr);
  expect_error(ErrorCode::internal, {"I64"}, [] { converted<std::int64_t>("I64", {1}); });
}

TEST(DType, SeveralAreToldAsAPersonWould) {
  EXPECT_EQ(one_of(std::array<std::string_view, 1>{"BF16"}), "BF16");
  EXPECT_EQ(one_of(std::array<std::string_view, 2>{"BF16", "F16"}), "BF16 or F16");
  EXPECT_EQ(one_of(kToFp32), "BF16, F16, F32 or F64");
}

TEST(DType, NamesAndSizes) {
  const std::vector<std::pair<std::string, Bytes>> sizes{{"BOOL", 1}, {"U8", 1},  {"F8_E4M3", 1}, {"U16", 2},
                                                         {"BF16", 2}, {"F16", 2}, {"I32", 4},     {"F32", 4},
                                                         {"F64", 8},  {"I64", 8}, {"C64", 8}};
  for (const auto& [name, bytes] : sizes) {
    ASSERT_NE(find_dtype(name), nullptr) << name;
    EXPECT_EQ(find_dtype(name)->bytes, bytes) << name;
  }
  for (const auto* name : {"", "F4", "bf16", "BF16 ", "FLOAT"}) EXPECT_EQ(find_dtype(name), nullptr) << name;
  for (const auto* name : {"U16", "I64", "BOOL", "F8_E4M3", "nonsense"}) EXPECT_FALSE(converts_to_fp32(name)) << name;
}

}  // namespace
}  // namespace spillway::state
