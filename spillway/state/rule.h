// What an optimizer keeps of every element, in which format, and where it lies in a chunk's state group.
//
// Whoever moves bytes asks the rule for sizes; whoever computes on them asks it for pointers. A new format or optimizer
// is an addition here and in `kernels`, and nowhere else.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/kernels/form_bytes.h"
#include "spillway/kernels/update.h"
#include "spillway/state/layout.h"

namespace spillway::state {

/// How the moments are kept.
enum class StateFormat : std::uint8_t {
  exact,  ///< fp32
  bf16,   ///< rounded stochastically
  int8,   ///< 8-bit codes, an fp32 scale for kernels::kQuantBlock elements; of small tensors fp32
};

struct UpdateRule {
  ComputeType type = ComputeType::bf16;
  kernels::Optimizer optimizer = kernels::Optimizer::adamw;
  StateFormat format = StateFormat::exact;
  friend bool operator==(const UpdateRule&, const UpdateRule&) = default;

  [[nodiscard]] constexpr std::size_t moments() const noexcept { return kernels::moment_count(optimizer); }
  /// Of a layout: no block of codes holds two tensors, and those of a tensor do not depend on its chunks.
  [[nodiscard]] constexpr std::uint64_t alignment() const noexcept {
    return format == StateFormat::int8 ? kernels::kQuantBlock : kTensorAlignment;
  }
};

/// Whether tensors that learn so have a state group, and a gradient; else these groups are of no bytes.
[[nodiscard]] constexpr bool has_state(Learning learning) noexcept {
  return learning != Learning::frozen;
}
[[nodiscard]] constexpr bool has_gradient(Learning learning) noexcept {
  return learning == Learning::full;
}

/// Bytes per element beside the moments: the residual of a bf16 weight, the master of an fp16 weight.
[[nodiscard]] constexpr Bytes rest_bytes(ComputeType type) noexcept {
  return type == ComputeType::bf16 ? 2 : type == ComputeType::fp16 ? 4 : 0;
}

/// How the moments of a tensor are kept; small ones have fewer than kSmallTensor elements.
[[nodiscard]] constexpr kernels::Moments moments_of(StateFormat format, bool small) noexcept {
  if (format == StateFormat::bf16) return kernels::Moments::bf16;
  return format == StateFormat::int8 && !small ? kernels::Moments::int8 : kernels::Moments::fp32;
}

/// Bytes per element of one moment, scales not counted.
using kernels::moment_bytes;
[[nodiscard]] constexpr Bytes moment_bytes(StateFormat format) noexcept {
  return moment_bytes(moments_of(format, false));
}

/// The arrays of a state group, in bytes from its start: first the rest, then the moments, then, int8 only, scales and
/// the moments of small tensors, as Span::small numbers them. Optimizers of one moment leave the second of each empty.
/// What is frozen has none of them.
struct StateFields {
  std::array<Bytes, 2> moments = {}, scales = {}, small = {};
  Bytes bytes = 0;  ///< of the whole group; a multiple of 4096
};

[[nodiscard]] constexpr StateFields state_fields(const UpdateRule& rule, const Chunk& chunk) noexcept {
  StateFields out;
  if (!has_state(chunk.learning)) return out;
  out.bytes = chunk.elements * rest_bytes(rule.type);
  const auto place = [&](std::array<Bytes, 2>& field, Bytes bytes) {
    for (std::size_t m = 0; m < rule.moments(); ++m) {
      field[m] = out.bytes;
      out.bytes += bytes;
    }
  };
  place(out.moments, chunk.elements * moment_bytes(rule.format));
  if (rule.format == StateFormat::int8) {
    place(out.scales, chunk.elements / kernels::kQuantBlock * sizeof(float));
    place(out.small, chunk.small * sizeof(float));
  }
  out.bytes = round_up(out.bytes, Bytes{4096});
  return out;
}

/// Bytes of the groups of a chunk.
[[nodiscard]] constexpr Bytes weight_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return chunk.elements * field_bytes(rule.type).weight;
}
[[nodiscard]] constexpr Bytes state_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return state_fields(rule, chunk).bytes;
}
[[nodiscard]] constexpr Bytes grad_bytes(const UpdateRule& rule, const Chunk& chunk) noexcept {
  return has_gradient(chunk.learning) ? chunk.elements * field_bytes(rule.type).grad : 0;
}

/// Weight and state together of the chunk that has most of them.
[[nodiscard]] inline Bytes largest_chunk_bytes(const UpdateRule& rule, const Layout& layout) noexcept {
  Bytes most = 0;
  for (const auto& chunk : layout.chunks()) {
    most = std::max(most, weight_bytes(rule, chunk) + state_bytes(rule, chunk));
  }
  return most;
}

/// The groups of a chunk in memory; any may be null, and the pointers into it are then null. So are those into a group
/// that the chunk does not have.
struct GroupPointers {
  std::byte* weight = nullptr;
  std::byte* state = nullptr;
  const std::byte* grad = nullptr;
};

/// The form of the update, of tensors that are not small.
[[nodiscard]] constexpr kernels::UpdateForm form_of(const UpdateRule& rule) noexcept {
  const auto weights = rule.type == ComputeType::bf16   ? kernels::Weights::split
                       : rule.type == ComputeType::fp16 ? kernels::Weights::fp16
                                                        : kernels::Weights::fp32;
  return {weights, moments_of(rule.format, false)};
}

/// What the kernels need for elements [first, first + n) of the chunk, which lie in `span`. With int8 `first` is a
/// multiple of kernels::kQuantBlock from the span's start.
struct Located {
  kernels::UpdateForm form;
  kernels::UpdateSpan span;
};
[[nodiscard]] Located locate(const UpdateRule& rule, const Chunk& chunk, const Span& span, const GroupPointers& groups,
                             std::uint64_t first, std::uint64_t n);

/// One array of a group, for people and files.
struct NamedArray {
  const char* name = "";  ///< "residual", "exp_avg", "exp_avg_scale", ...
  Bytes first = 0, bytes = 0;
  Bytes item = 0;            ///< bytes of one entry
  std::uint64_t covers = 1;  ///< elements of the chunk that an entry is for; 0: of small tensors, in their order
};
[[nodiscard]] std::vector<NamedArray> weight_arrays(const UpdateRule& rule, const Chunk& chunk);
[[nodiscard]] std::vector<NamedArray> state_arrays(const UpdateRule& rule, const Chunk& chunk);

/// "exp_avg" and "exp_avg_sq"; of sgd "momentum_buffer": PyTorch's names.
[[nodiscard]] const char* moment_name(kernels::Optimizer optimizer, std::size_t moment) noexcept;
/// The same with "_scale" behind it.
[[nodiscard]] const char* scale_name(kernels::Optimizer optimizer, std::size_t moment) noexcept;

/// "residual", "master"; of fp32 "".
[[nodiscard]] const char* rest_name(ComputeType type) noexcept;

[[nodiscard]] const char* name_of(ComputeType type) noexcept;
[[nodiscard]] const char* name_of(StateFormat format) noexcept;
[[nodiscard]] const char* name_of(kernels::Optimizer optimizer) noexcept;
/// The reverse. Throw Error(bad_input) naming what there is.
[[nodiscard]] ComputeType parse_compute_type(std::string_view name);
[[nodiscard]] StateFormat parse_format(std::string_view name);
[[nodiscard]] kernels::Optimizer parse_optimizer(std::string_view name);

}  // namespace spillway::state
