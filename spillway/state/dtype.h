// Element types of the safetensors format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "spillway/base/bytes.h"

namespace spillway::state {

struct DType {
  std::string_view name;  ///< as in a header: "BF16"
  Bytes bytes = 0;        ///< of one element
  int rank = 0;           ///< the reference serialiser puts higher ranks first in a file
};

/// nullptr for a name that is unknown or whose elements are not whole bytes ("F4").
[[nodiscard]] const DType* find_dtype(std::string_view name) noexcept;

/// For a person: "BF16, F16 or F32". `dtypes` are one at least.
[[nodiscard]] std::string one_of(std::span<const std::string_view> dtypes);

/// The types that to_fp32 knows.
inline constexpr std::array<std::string_view, 4> kToFp32 = {"BF16", "F16", "F32", "F64"};
[[nodiscard]] bool converts_to_fp32(std::string_view dtype) noexcept;

/// `n` raw little-endian elements to fp32: exact for BF16, F16 and F32 (NaN payloads included), F64 rounded to nearest
/// even. `raw` may have any alignment and does not overlap `out`. Throws Error(internal) for another type.
void to_fp32(std::string_view dtype, const std::byte* raw, std::size_t n, float* out);

}  // namespace spillway::state
