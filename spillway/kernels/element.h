// The types of elements that weights and gradients have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "spillway/base/bytes.h"
#include "spillway/kernels/encoding.h"

namespace spillway::kernels {

/// A new type is a row below, and an overload of what computes on elements (device/typed.h, weights-inl.h).
enum class Element : std::uint8_t { bf16, fp16, fp32 };

struct ElementTraits {
  const char* name;   ///< in configurations
  const char* dtype;  ///< in files
  Encoding encoding;
  Bytes bytes;
  Bytes remainder;              ///< of what a weight has beside it, which makes it an fp32 master; 0: it is its own
  const char* remainder_name;   ///< of a field of a state; "": there is none
  const char* remainder_dtype;  ///< in files
  bool rounds;                  ///< values of fp32 are rounded to it
  bool scales_loss;             ///< gradients of so small a range take a scaled loss
};

inline constexpr std::array<ElementTraits, 3> kElements = {{
    {"bf16", "BF16", Encoding::bf16, 2, 2, "residual", "U16", true, false},
    {"fp16", "F16", Encoding::fp16, 2, 4, "master", "F32", true, true},
    {"fp32", "F32", Encoding::fp32, 4, 0, "", "", false, false},
}};

[[nodiscard]] constexpr const ElementTraits& traits(Element type) noexcept {
  return kElements[static_cast<std::size_t>(type)];
}
[[nodiscard]] constexpr const char* name_of(Element type) noexcept {
  return traits(type).name;
}

}  // namespace spillway::kernels
