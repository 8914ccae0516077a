// The files of a saved state: what each of them holds of every tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spillway/state/rule.h"

namespace spillway::state {

struct StateFile {
  enum class Holds : std::uint8_t { remainder, moment, scale };  ///< the last two by Tensor::gradient_shape()
  Holds holds = Holds::remainder;
  const char* field = "";  ///< of the optimizer's: the moment, or that which the scales are of
  std::string name;        ///< without ".safetensors"
};

/// Those of a run with this rule, in the order in which they lie in a state group; where several optimizers share the
/// tensors, those of all. A tensor is in the files of its own optimizer's fields.
[[nodiscard]] std::vector<StateFile> state_files(const UpdateRule& rule);

/// How moments of a type in a file's header are kept; empty for a type that holds none.
[[nodiscard]] std::optional<kernels::Moments> moments_of(const std::string& dtype) noexcept;

/// Entries of a scale file for so many elements.
[[nodiscard]] constexpr std::uint64_t scales_of(std::uint64_t elements) noexcept {
  return ceil_div(elements, kernels::kQuantBlock);
}

}  // namespace spillway::state
