// Arithmetic between the products of a layer, each in one pass over memory: RMSNorm, SwiGLU and rotary embedding,
// forward and backward. Pieces of `Work` (device/work.h).
//
// Inner arithmetic is in fp32, and is rounded where transformers' own code rounds. Additions follow from indices alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/kernels/element.h"

namespace spillway::device {

struct ParallelFor;

/// Elements of a row are added in 32 lanes: those of group i (of so many elements) one after the other to lane i mod
/// 32, and lanes as a tree (kernels/lanes.h).
inline constexpr std::uint64_t kFusedGroup = 8;
/// Rows whose parts of a weight's gradient are added one after the other.
inline constexpr std::uint64_t kNormRows = 16;

[[nodiscard]] constexpr std::uint64_t norm_tiles(std::uint64_t rows) noexcept {
  return (rows + kNormRows - 1) / kNormRows;
}

/// Rows [rows, columns] over the root of their mean square, times `offset` + weight (offset: 1 in models like Gemma).
struct RmsNorm {
  kernels::Element type = kernels::Element::bf16;  ///< of all values
  const std::byte* values = nullptr;
  const std::byte* weight = nullptr;  ///< [columns]
  std::uint64_t rows = 0, columns = 0;
  float epsilon = 0;  ///< beside the mean square
  float offset = 0;
  bool rounds_early = false;  ///< normalised values are rounded before the weight multiplies them, as in Llama
};

/// out = norm, [rows, columns]; no overlap. With an addend, the norm is of sum = values + addend, which is rounded to
/// `type`.
struct RmsNormForward {
  RmsNorm norm;
  std::byte* out = nullptr;
  const std::byte* addend = nullptr;  ///< [rows, columns]; null: none
  std::byte* sum = nullptr;           ///< [rows, columns]; null without an addend
};

/// First pass of backward, of each row: r = 1 / root, and r^3 * mean(gradient * weight * values).
struct RmsNormScales {
  RmsNorm norm;
  const std::byte* gradient = nullptr;  ///< d loss / d norm, [rows, columns]
  float* scales = nullptr;              ///< [rows, 2]
};

/// Second pass: out = d loss / d values, rounded, + `skip_gradient`, rounded. `sums`: each tile's sum of gradient *
/// normalised value, [norm_tiles(rows), columns]; null: not wanted.
struct RmsNormBackward {
  RmsNorm norm;
  const std::byte* gradient = nullptr;
  const float* scales = nullptr;
  std::byte* out = nullptr;
  float* sums = nullptr;
  const std::byte* skip_gradient = nullptr;  ///< d loss / d values by the skip connection, [rows, columns]; null: 0
};

/// Third pass: out = d loss / d weight, [columns]. Tile i is added to lane i mod 32, and lanes as a tree.
struct RmsNormWeight {
  kernels::Element type = kernels::Element::bf16;  ///< of `out`
  const float* sums = nullptr;                     ///< [tiles, columns]
  std::uint64_t tiles = 0, columns = 0;
  std::byte* out = nullptr;
};

/// out = silu(gate) * up; n elements, no overlap.
struct SwiGlu {
  kernels::Element type = kernels::Element::bf16;
  const std::byte *gate = nullptr, *up = nullptr;
  std::byte* out = nullptr;
  std::uint64_t n = 0;
};

/// d loss / d gate and d loss / d up; n elements, no overlap. `product`: the output of SwiGlu once more, for a caller
/// that has not kept it; may be `gradient`; null: not wanted.
struct SwiGluBackward {
  kernels::Element type = kernels::Element::bf16;
  const std::byte *gate = nullptr, *up = nullptr;
  const std::byte* gradient = nullptr;  ///< d loss / d out
  std::byte *gate_gradient = nullptr, *up_gradient = nullptr;
  std::byte* product = nullptr;
  std::uint64_t n = 0;
};

/// Rotation of pairs (element i and i + half of a head) by the angles of a token: out = in * cos + (-in[half:],
/// in[:half]) * sin, as transformers' apply_rotary_pos_emb; backward its transpose. No overlap.
struct Rotary {
  struct Strides {
    std::uint64_t sequence = 0, head = 0, token = 0;  ///< elements from one to the next
  };
  kernels::Element type = kernels::Element::bf16;
  bool backward = false;
  const std::byte* in = nullptr;                         ///< [sequences, heads, tokens, 2 * half]
  const std::byte *cosines = nullptr, *sines = nullptr;  ///< [sequences, tokens, 2 * half], both with `table_strides`
  std::byte* out = nullptr;                              ///< as `in`
  std::uint64_t sequences = 0, heads = 0, tokens = 0, half = 0;
  Strides in_strides, out_strides, table_strides;  ///< heads share a table: its stride of heads is 0
};

// References on memory that the host reads, made of what a GPU's threads do.

void on_host(const RmsNormForward& it, const ParallelFor& parallel_for);
void on_host(const RmsNormScales& it, const ParallelFor& parallel_for);
void on_host(const RmsNormBackward& it, const ParallelFor& parallel_for);
void on_host(const RmsNormWeight& it, const ParallelFor& parallel_for);
void on_host(const SwiGlu& it, const ParallelFor& parallel_for);
void on_host(const SwiGluBackward& it, const ParallelFor& parallel_for);
void on_host(const Rotary& it, const ParallelFor& parallel_for);

}  // namespace spillway::device
