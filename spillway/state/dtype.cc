#include "spillway/state/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "spillway/base/error.h"

namespace spillway::state {
namespace {

constexpr std::array<DType, 19> kTypes{{
    {"BOOL", 1, 0},    {"U8", 1, 1},          {"I8", 1, 2},          {"F8_E5M2", 1, 3}, {"F8_E4M3", 1, 4},
    {"F8_E8M0", 1, 5}, {"F8_E4M3FNUZ", 1, 6}, {"F8_E5M2FNUZ", 1, 7}, {"I16", 2, 8},     {"U16", 2, 9},
    {"F16", 2, 10},    {"BF16", 2, 11},       {"I32", 4, 12},        {"U32", 4, 13},    {"F32", 4, 14},
    {"C64", 8, 15},    {"F64", 8, 16},        {"I64", 8, 17},        {"U64", 8, 18},
}};

float from_half(std::uint16_t half) {
  constexpr std::uint32_t kExponent = 0x1F;
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t exponent = (half >> 10U) & kExponent;
  const std::uint32_t fraction = half & 0x3FFU;
  if (exponent == kExponent) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13U));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
  // Subnormal: fraction * 2^-24, which fp32 holds as a normal number.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

template <class Raw, class Convert>
void convert(const std::byte* raw, std::size_t n, float* out, Convert one) {
  for (std::size_t i = 0; i < n; ++i) {
    Raw value;
    std::memcpy(&value, raw + i * sizeof(Raw), sizeof(Raw));
    out[i] = one(value);
  }
}

}  // namespace

const DType* find_dtype(std::string_view name) noexcept {
  for (const auto& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

std::string one_of(std::span<const std::string_view> dtypes) {
  std::string out;
  for (const auto name : dtypes.first(dtypes.size() - 1)) out += text(out.empty() ? "" : ", ", name);
  return text(out, out.empty() ? "" : " or ", dtypes.back());
}

bool converts_to_fp32(std::string_view dtype) noexcept {
  return std::ranges::find(kToFp32, dtype) != kToFp32.end();
}

void to_fp32(std::string_view dtype, const std::byte* raw, std::size_t n, float* out) {
  if (n == 0) return;
  if (dtype == "F32") {
    std::memcpy(out, raw, n * sizeof(float));
  } else if (dtype == "BF16") {
    convert<std::uint16_t>(raw, n, out,
                           [](std::uint16_t v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16U); });
  } else if (dtype == "F16") {
    convert<std::uint16_t>(raw, n, out, from_half);
  } else if (dtype == "F64") {
    convert<double>(raw, n, out, [](double v) { return static_cast<float>(v); });
  } else {
    throw Error(ErrorCode::internal, text("no way from ", dtype, " to fp32"));
  }
}

}  // namespace spillway::state
