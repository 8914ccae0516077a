// The JSON header of one safetensors file.
//
// Parsed with suspicion, event by event: memory is proportional to the tensors, and nothing that a header says is used
// before it has been checked against the other things it says and against the bytes that are there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::state {

/// Longest header that is read or written, in bytes; the reference library's limit.
inline constexpr Bytes kMaxHeader = 100'000'000;

/// Bytes of the header's length, which come first in a file.
inline constexpr Bytes kLengthBytes = 8;

struct HeaderTensor {
  std::string name;
  std::string dtype;                ///< known to find_dtype
  std::vector<std::int64_t> shape;  ///< all >= 0; empty = a scalar
  Bytes begin = 0, end = 0;         ///< counted from the start of the data
  std::uint64_t elements = 0;       ///< product of the shape
  Bytes element_bytes = 0;          ///< elements * element_bytes == end - begin
};

/// The tensors by rising `begin`; together they are exactly [0, data_bytes). Throws Error(bad_input) that names `file`
/// and, where there is one, the tensor.
[[nodiscard]] std::vector<HeaderTensor> parse_header(std::string_view json, Bytes data_bytes, const std::string& file);

/// Length, JSON with metadata {"format": "pt"}, and padding to a multiple of 8 bytes, byte for byte as the reference
/// library writes them. Uses name, dtype, shape, begin and end; names are valid UTF-8.
[[nodiscard]] std::string serialize_header(std::span<const HeaderTensor> tensors);

}  // namespace spillway::state
