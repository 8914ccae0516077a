// Weights that are not finite: the steps of a model that has one are all skipped, so it is refused when it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/kernels/element.h"

namespace spillway::state {

/// Number of the first value that is not finite, or that rounds to infinity where weights are of this type. Empty:
/// there is none.
[[nodiscard]] std::optional<std::size_t> find_not_finite(std::span<const float> values, kernels::Element type) noexcept;

/// Number of the first of `count` weights of this type that is not finite.
[[nodiscard]] std::optional<std::size_t> find_not_finite(const std::byte* weights, std::size_t count,
                                                         kernels::Element type);

/// A weight that is not finite.
struct NotFinite {
  std::string tensor;
  std::vector<std::int64_t> shape;
  std::uint64_t element = 0;  ///< in row-major order
  float value = 0;
};

/// Throws Error(bad_input) that names the tensor, its file, the index and the value. `file` may be empty.
[[noreturn]] void refuse_not_finite(const NotFinite& it, const std::string& file);

}  // namespace spillway::state
