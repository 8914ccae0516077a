// What an optimizer keeps of every element, in which format, and where it lies in a chunk's state group.
//
// Whoever moves bytes asks the rule for sizes; whoever computes on them asks it for pointers. Which fields there are is
// said by the optimizer's descriptor (optim/descriptor.h), what a type and a format take by their rows in `kernels`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/kernels/moments.h"
#include "spillway/kernels/update.h"
#include "spillway/optim/optimizers.h"
#include "spillway/state/layout.h"

namespace spillway::state {

/// How the moments are kept; where they are scaled, those of unquantised tensors are exact.
using StateFormat = kernels::Moments;

struct UpdateRule {
  ComputeType type = ComputeType::bf16;
  const optim::Descriptor* optimizer = &optim::adamw;
  StateFormat state_format = StateFormat::exact;
  bool has_remainder = true;  ///< false: of a chunk or a tensor whose weights of the type are their own masters
  friend bool operator==(const UpdateRule&, const UpdateRule&) = default;

  /// State fields of an element; those of a chunk or a tensor are those of its own rule, see rule_of().
  [[nodiscard]] constexpr std::size_t moments() const noexcept { return optimizer->fields.size(); }
  /// The alignment of a layout: no block of codes holds two tensors, and those of a tensor do not depend on its chunks.
  [[nodiscard]] constexpr std::uint64_t alignment() const noexcept {
    return traits(state_format).is_scaled ? kernels::kQuantBlock : kTensorAlignment;
  }
};

/// What holds for a chunk or a tensor: of one that is kept in fp32 the rule of that; of one that is no whole matrix the
/// optimizer that a run of matrix scope has for all others.
[[nodiscard]] constexpr UpdateRule rule_of(const UpdateRule& rule, Form form, bool whole) noexcept {
  return {type_of(form, rule.type), &rule.optimizer->of(whole), rule.state_format, form != Form::bf16_master};
}
[[nodiscard]] constexpr UpdateRule rule_of(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return rule_of(rule, chunk.form, chunk.whole);
}
[[nodiscard]] constexpr UpdateRule rule_of(const UpdateRule& rule, const Tensor& tensor) noexcept {
  return rule_of(rule, tensor.spec.form, tensor.whole);
}

/// Whether tensors that learn so have a state group, and a gradient; else these groups are of no bytes.
[[nodiscard]] constexpr bool has_state(Training training) noexcept {
  return training != Training::frozen;
}
[[nodiscard]] constexpr bool has_gradient(Training training) noexcept {
  return training != Training::frozen;
}

/// Bytes per element beside the moments: the remainder of a bf16 weight, the master of an fp16 weight.
[[nodiscard]] constexpr Bytes remainder_bytes(const UpdateRule& rule) noexcept {
  return rule.has_remainder ? traits(rule.type).remainder : 0;
}

/// How the moments of a tensor are kept; unquantised ones have fewer than kUnquantisedBelow elements.
[[nodiscard]] constexpr kernels::Moments moments_of(StateFormat format, bool unquantised) noexcept {
  return traits(format).is_scaled && unquantised ? kernels::Moments::exact : format;
}

/// The arrays of a state group, in bytes from its start: first the remainder, then the moments, then, of scaled ones,
/// scales and the moments of unquantised tensors, as Span::unquantised numbers them, at last the auxiliary fields of
/// what is reduced. Optimizers of one moment leave the second of each empty. What is frozen has none of them; reduced,
/// the moments are those of S.
struct StateFields {
  std::array<Bytes, 2> moments = {}, scales = {}, unquantised = {};
  Bytes auxiliary = 0;  ///< optim::Reduced::auxiliary_bytes()
  Bytes bytes = 0;      ///< of the whole group; a multiple of 4096
};

[[nodiscard]] constexpr StateFields state_fields(const UpdateRule& of_all, const Chunk& chunk) noexcept {
  const auto rule = rule_of(of_all, chunk);
  StateFields out;
  if (!has_state(chunk.training)) return out;
  out.bytes = chunk.values() * remainder_bytes(rule);
  const auto place = [&](std::array<Bytes, 2>& field, Bytes bytes) {
    for (std::size_t m = 0; m < rule.moments(); ++m) {
      field[m] = out.bytes;
      out.bytes += bytes;
    }
  };
  place(out.moments, chunk.gradient_elements * traits(rule.state_format).bytes);
  if (traits(rule.state_format).is_scaled) {
    place(out.scales, chunk.gradient_elements / kernels::kQuantBlock * sizeof(float));
    place(out.unquantised, chunk.unquantised * sizeof(float));
  }
  out.bytes = round_up(out.bytes, Bytes{8});
  out.auxiliary = out.bytes;
  out.bytes += chunk.reduced.auxiliary_bytes();
  out.bytes = round_up(out.bytes, Bytes{4096});
  return out;
}

/// Bytes of the groups of a chunk, by the rule of its run.
[[nodiscard]] constexpr Bytes weight_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return chunk.elements * field_bytes(rule.type).weight;
}
[[nodiscard]] constexpr Bytes state_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return state_fields(rule, chunk).bytes;
}
/// The bytes of a gradient that lie before the auxiliary fields that a reduced one was made with.
[[nodiscard]] constexpr Bytes gradient_value_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return chunk.gradient_elements * field_bytes(rule_of(rule, chunk).type).grad;
}
[[nodiscard]] constexpr Bytes grad_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return gradient_value_bytes(rule, chunk) + round_up(chunk.reduced.auxiliary_bytes(), Bytes{4096});
}

/// Bytes of memory that an update of an element reads and writes: the gradient, both parts of the weight, the moments.
/// Of a run whose optimizer is of matrix scope those of its other tensors.
[[nodiscard]] constexpr Bytes update_bytes(const UpdateRule& rule) noexcept {
  const auto bytes = field_bytes(rule.type);
  const auto moments = rule.optimizer->of(false).fields.size() * traits(rule.state_format).bytes;
  return 2 * (bytes.weight + remainder_bytes(rule) + moments) + bytes.grad;
}

/// What an update costs, counted in elements that learn in full, by the bytes that it moves: of a reduced one the
/// update of S, and a weight that is read and written with its remainder; of a whole matrix what its optimizer says.
[[nodiscard]] constexpr std::uint64_t update_elements(const UpdateRule& of_all, const Chunk& chunk) noexcept {
  const auto rule = rule_of(of_all, chunk);
  if (chunk.whole) return rule.optimizer->matrix->cost(chunk.rows, chunk.columns);
  if (!chunk.reduced.any()) return chunk.values();
  const auto rewritten = 2 * (field_bytes(rule.type).weight + remainder_bytes(rule));
  return chunk.gradient_elements + ceil_div(chunk.elements * rewritten, update_bytes(rule));
}

/// The part of update_elements() that adds the change of a reduced matrix to its weight.
[[nodiscard]] constexpr std::uint64_t apply_elements(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return update_elements(rule, chunk) - chunk.gradient_elements;
}

/// The type of the change of a reduced matrix as it is sent: fp32, or that of weights that are their own masters.
[[nodiscard]] constexpr ComputeType change_type(const UpdateRule& rule, const Chunk& chunk) noexcept {
  const auto own = rule_of(rule, chunk);
  return own.has_remainder ? ComputeType::fp32 : own.type;
}
/// Bytes of the change, in the reduced shape, before the auxiliary fields that it goes through.
[[nodiscard]] constexpr Bytes change_value_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return round_up(chunk.reduced.elements() * traits(change_type(rule, chunk)).bytes, Bytes{64});
}
/// Bytes of both.
[[nodiscard]] constexpr Bytes change_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return round_up(change_value_bytes(rule, chunk) + chunk.reduced.auxiliary_bytes(), Bytes{4096});
}
/// Bytes that a device works on beside a change that is not fp32: the change, widened.
[[nodiscard]] constexpr Bytes widened_change_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return traits(change_type(rule, chunk)).rounds ? chunk.reduced.elements() * sizeof(float) : 0;
}

/// Bytes of the remainders that come first in the state of a chunk.
[[nodiscard]] constexpr Bytes remainders_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return chunk.values() * remainder_bytes(rule_of(rule, chunk));
}

/// What updating needs beside the groups of a chunk, of the chunk that needs most.
[[nodiscard]] inline Bytes update_workspace(const UpdateRule& rule, const Layout& layout) noexcept {
  Bytes most = 0;
  for (const auto& chunk : layout.chunks()) {
    if (chunk.whole) most = std::max(most, rule.optimizer->matrix->workspace(chunk.rows, chunk.columns));
  }
  return most;
}

/// Weight and state together of the chunk that has most of them.
[[nodiscard]] inline Bytes largest_chunk_bytes(const UpdateRule& rule, const Layout& layout) noexcept {
  Bytes most = 0;
  for (const auto& chunk : layout.chunks()) {
    most = std::max(most, weight_bytes(rule, chunk) + state_bytes(rule, chunk));
  }
  return most;
}

/// A gradient of the chunk that has the largest.
[[nodiscard]] inline Bytes largest_grad_bytes(const UpdateRule& rule, const Layout& layout) noexcept {
  Bytes most = 0;
  for (const auto& chunk : layout.chunks()) most = std::max(most, grad_bytes(rule, chunk));
  return most;
}

/// The groups of a chunk in memory; any may be null, and the pointers into it are then null. So are those into a group
/// that the chunk does not have.
struct GroupPointers {
  std::byte* weight = nullptr;
  std::byte* state = nullptr;
  const std::byte* grad = nullptr;
  std::byte* change =
      nullptr;  ///< where the update of a reduced matrix leaves its change (change_bytes()); null: nowhere
};

/// The matrix of a whole chunk, as its optimizer's kernel takes it; the workspace is the caller's.
[[nodiscard]] optim::MatrixSpan matrix_of(const UpdateRule& rule, const Chunk& chunk, const GroupPointers& groups);

/// The form of the update, of quantised tensors.
[[nodiscard]] constexpr kernels::UpdateForm form_of(const UpdateRule& rule) noexcept {
  return {rule.type, rule.state_format};
}

/// What the kernels need for values [first, first + n) of the chunk, which lie in `span`. With int8 `first` is a
/// multiple of kernels::kQuantBlock from the span's start.
struct Located {
  kernels::UpdateForm form;
  kernels::UpdateSpan span;
};
[[nodiscard]] Located locate(const UpdateRule& rule, const Chunk& chunk, const Span& span, const GroupPointers& groups,
                             std::uint64_t first, std::uint64_t n);
/// For what is reduced, locate() has weight and remainder alone. This has gradient and moments of elements [first,
/// first + n) of S, whose weight is the caller's own, in fp32.
[[nodiscard]] Located locate_gradient(const UpdateRule& rule, const Chunk& chunk, const GroupPointers& groups,
                                      std::uint64_t first, std::uint64_t n);

/// One array of a group, for people and files.
struct NamedArray {
  std::string name;  ///< "residual", "exp_avg", "exp_avg_scale", ...
  Bytes first = 0, bytes = 0;
  Bytes item = 0;            ///< bytes of one entry
  std::uint64_t covers = 1;  ///< elements of the chunk that an entry is for; 0: of unquantised tensors, in their order
};
[[nodiscard]] std::vector<NamedArray> weight_arrays(const UpdateRule& rule, const Chunk& chunk);
[[nodiscard]] std::vector<NamedArray> state_arrays(const UpdateRule& rule, const Chunk& chunk);

/// The name of a state field with "_scale" behind it: that of the scales of its codes.
[[nodiscard]] std::string scale_name(const char* field);

/// Throws Error(bad_input) where the optimizer does not keep its state in that format.
void check_format(const UpdateRule& rule);

using kernels::name_of;
[[nodiscard]] constexpr const char* name_of(Form form) noexcept {
  return word_of(form);
}
[[nodiscard]] constexpr const char* name_of(BlockRole role) noexcept {
  return traits(role).name;
}
/// The reverse, and a role by its name. Throw Error(bad_input) naming what there is.
[[nodiscard]] ComputeType parse_compute_type(std::string_view name);
[[nodiscard]] ComputeType parse_weight_type(std::string_view name);
[[nodiscard]] StateFormat parse_format(std::string_view name);
[[nodiscard]] Form parse_packed_form(std::string_view name);
[[nodiscard]] BlockRole parse_role(std::string_view name);

}  // namespace spillway::state
