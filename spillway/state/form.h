// A form says in which type weights are stored, and so what a value takes of the bytes that move.
//
// Whatever moves, places or plans bytes counts elements of the run's type of weights and knows nothing of forms. A form
// says how many of its values take the place of how many such elements.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

#include "spillway/base/bytes.h"
#include "spillway/kernels/element.h"

namespace spillway::state {

/// Element type of weights, of gradients and of what passes compute in.
using ComputeType = kernels::Element;

/// Bytes per element of what computing needs; of the state see rule.h.
struct FieldBytes {
  Bytes weight;
  Bytes grad;  ///< gradient
};

[[nodiscard]] constexpr FieldBytes field_bytes(ComputeType type) noexcept {
  return {traits(type).bytes, traits(type).bytes};
}

/// How the weights of a tensor are stored in a run.
enum class Form : std::uint8_t {
  as_run,  ///< in the run's type of weights
  fp32,    ///< in fp32 beside a narrower type: the weight is its own master, and its gradient is fp32, too
  nf4,     ///< packed (kernels/packed.h): of what is frozen inside layers, rounded when it is read from a checkpoint
  int8,    ///< the same
  nf4_nested,   ///< the same, with scales that are codes, too: all of a tensor is measured before any of it is packed
  bf16_master,  ///< of reduced matrices in a run of bf16: the weight is the master, which updates round stochastically
};
/// Forms of tensors that may share a chunk.
inline constexpr std::array kForms{Form::as_run, Form::fp32, Form::nf4, Form::int8, Form::nf4_nested};

/// So many values take the place of so many elements of the run's type of weights.
struct Packing {
  std::uint64_t values = 1, elements = 1;

  /// Elements that `count` values take the place of; a part of a group takes the place of a whole one.
  [[nodiscard]] constexpr std::uint64_t elements_of(std::uint64_t count) const noexcept {
    return ceil_div(count, values) * elements;
  }
  /// Values that have room in `count` elements.
  [[nodiscard]] constexpr std::uint64_t values_in(std::uint64_t count) const noexcept {
    return count / elements * values;
  }
  /// The least multiple of `unit` elements that holds whole groups.
  [[nodiscard]] constexpr std::uint64_t granule(std::uint64_t unit) const noexcept { return std::lcm(unit, elements); }
  friend bool operator==(const Packing&, const Packing&) = default;
};

/// The form that a tensor has in a run whose weights are of `type`: where that is fp32, none is kept in fp32 beside it.
[[nodiscard]] constexpr Form form_in(Form form, ComputeType type) noexcept {
  return form == Form::fp32 && !traits(type).rounds ? Form::as_run : form;
}

/// The type of weights and gradients of the form, in a run where those of others are of `type`.
[[nodiscard]] constexpr ComputeType type_of(Form form, ComputeType type) noexcept {
  return form == Form::fp32 ? ComputeType::fp32 : type;
}

/// Whether no layer multiplies by weights of the form as they lie, so that a pass converts them first.
[[nodiscard]] constexpr bool is_packed(Form form) noexcept {
  return form != Form::as_run && form != Form::fp32 && form != Form::bf16_master;
}

/// How the weights of a chunk lie, in a run whose weights are of `type`.
[[nodiscard]] constexpr kernels::Encoding encoding_of(Form form, ComputeType type) noexcept {
  if (form == Form::nf4) return kernels::Encoding::nf4;
  if (form == Form::int8) return kernels::Encoding::int8;
  if (form == Form::nf4_nested) return kernels::Encoding::nf4_nested;
  return traits(type_of(form, type)).encoding;
}

/// Whether packing a value takes the mean of all scales of its tensor (kernels::ScaleMean).
[[nodiscard]] constexpr bool needs_scale_mean(Form form) noexcept {
  return form == Form::nf4_nested;
}

/// The packing of a form that form_in() gives for the type.
[[nodiscard]] constexpr Packing packing_of(Form form, ComputeType type) noexcept {
  if (form == Form::as_run || form == Form::bf16_master) return {};
  const auto encoding = encoding_of(form, type);
  const auto group = kernels::group_values(encoding);
  return {.values = group, .elements = kernels::encoded_bytes(encoding, group) / field_bytes(type).weight};
}

/// What fingerprints of models and messages call a form; "" of what is stored as the run's type says.
[[nodiscard]] constexpr const char* word_of(Form form) noexcept {
  switch (form) {
    case Form::as_run:
      break;
    case Form::fp32:
      return "wide";
    case Form::nf4:
      return "nf4";
    case Form::int8:
      return "int8";
    case Form::nf4_nested:
      return "nf4_nested";
    case Form::bf16_master:
      return "bf16_master";
  }
  return "";
}

}  // namespace spillway::state
