// Products with sparse projectors: a layer's input and output gradient into the subspace, the subspace's delta back
// onto the weight (Chen et al., "Practical Offloading for Fine-Tuning LLM on Commodity GPU via Learned Sparse
// Projectors", arXiv 2406.10181, section 3).
//
// A projector R [rows, columns] has r values in each row. Rows come in columns / r groups of neighbours, as equal as
// may be; all rows of group g have theirs in the columns g * r to g * r + r - 1. So a product with R is one of small
// dense blocks: every element of the other factor is read once, at neighbouring addresses. (Places by chance were
// measured on gradients of a trained model and estimate them no better: research/lsp_quality.py --errors.)
//
// A scattered projector has the places of its values beside them, as the paper has it: any r different columns of a
// row.
//
// Every instruction set gives the same bits: an element of a result is a chain of fused multiply-adds from 0 on, in the
// order of the sum's index. P * delta * Q^T is P * (delta * Q^T), since the rows of a group share their rows of delta;
// of scattered projectors, whose rows share nothing, it is (P * delta) * Q^T.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/update.h"

namespace spillway::kernels {

/// Floats behind the last row of `values` that may be read: a vector.
inline constexpr std::size_t kProjectorPad = 16;
/// Tokens that are compressed together.
inline constexpr std::size_t kTokenTile = 16;
/// Columns of a weight that are updated together, for all rows of a group.
inline constexpr std::size_t kColumnTile = 512;
/// Rows of a scattered projector whose tokens are turned together.
inline constexpr std::size_t kRowTile = 64;

/// A view. Requires nonzeros > 0, columns a multiple of it, and columns <= rows.
struct Projector {
  const float* values = nullptr;  ///< [nonzeros][stride()]: value s of row i is values[s * stride() + i]
  std::size_t rows = 0, columns = 0, nonzeros = 0;
  const std::uint32_t* places = nullptr;  ///< columns of `values`, which lie alike; null: blocks
  /// Index of scattered values by column, which a GPU compresses by: columns + 1 offsets, then the numbers of the
  /// values of each column, by row.
  const std::uint32_t* by_column = nullptr;

  [[nodiscard]] constexpr bool is_scattered() const noexcept { return places != nullptr; }
  // Blocks alone have the following.
  [[nodiscard]] constexpr std::size_t stride() const noexcept { return rows + kProjectorPad; }
  [[nodiscard]] constexpr std::size_t groups() const noexcept { return columns / nonzeros; }
  /// The first row of a group; of groups(): rows.
  [[nodiscard]] constexpr std::size_t first(std::size_t group) const noexcept { return group * rows / groups(); }
  [[nodiscard]] constexpr std::size_t group_of(std::size_t row) const noexcept {
    return ((row + 1) * groups() - 1) / rows;
  }
  /// Rows of the largest group.
  [[nodiscard]] constexpr std::size_t largest() const noexcept { return (rows + groups() - 1) / groups(); }
};

/// Numbers of Projector::by_column.
[[nodiscard]] constexpr std::size_t column_index_size(const Projector& projector) noexcept {
  return projector.is_scattered() ? projector.columns + 1 + projector.nonzeros * projector.rows : 0;
}

/// Makes Projector::by_column of a scattered one.
void number_columns(const Projector& projector, std::uint32_t* out) noexcept;

/// Floats that compress() works on.
[[nodiscard]] constexpr std::size_t compress_work(const Projector& projector) noexcept {
  return (projector.is_scattered() ? kRowTile + projector.columns : projector.largest()) * kTokenTile;
}

/// out[c * out_stride + t] = sum over i of in[t * in_stride + i] * R[i, c], for all t < tokens, c < columns: the
/// projected tokens, of which each column is one array. `in` has rows elements a token. Rounded to nearest even for
/// bf16 and fp16. No overlap; any alignment; tokens may be 0. Threads share it by ranges of tokens.
void compress(const Projector& projector, const std::uint16_t* in, std::size_t in_stride, std::size_t tokens,
              std::uint16_t* out, std::size_t out_stride, float* work);  // bf16
void compress(const Projector& projector, const float* in, std::size_t in_stride, std::size_t tokens, float* out,
              std::size_t out_stride, float* work);
void compress(const Projector& projector, const Fp16* in, std::size_t in_stride, std::size_t tokens, Fp16* out,
              std::size_t out_stride, float* work);

/// Where P [m, d] and Q [n, d] put a step's delta [d, d].
struct Expansion {
  Projector p, q;                ///< p.columns == q.columns; both scattered, or none
  const float* delta = nullptr;  ///< [d][d], row-major
  // Weights that are their own masters are rounded stochastically, by these and the element's index:
  std::uint64_t seed = 0;
  std::int64_t step = 0;
};

/// The number of element 0 of a span among those that weights are rounded by: other ones than moments are rounded by.
[[nodiscard]] SPILLWAY_ON_DEVICE constexpr std::uint64_t rounding_index(std::uint64_t index) noexcept {
  return index | std::uint64_t{1} << 63;
}

/// Floats that apply() works on.
[[nodiscard]] constexpr std::size_t apply_work(const Expansion& expansion) noexcept {
  if (expansion.p.is_scattered()) return expansion.p.columns + kColumnTile;
  return expansion.p.nonzeros * kColumnTile + expansion.q.rows;
}

/// master = keep * master + P * delta * Q^T over the elements [first, first + span.n) of the matrix [p.rows, q.rows],
/// which lie in `span` (its gradient and moments are not looked at): one pass over weight and remainder, exact in the
/// sense of `weights`; bf16 without a remainder is rounded stochastically (round_bf16_randomly(), random16() of
/// rounding_index()). With `keep` 1 - rate * decay this is decoupled weight decay. A result that is not a number is
/// kFloatNaN. Threads share it by ranges of elements; any cut gives the same bits.
void apply(Weights weights, const Expansion& expansion, float keep, const UpdateSpan& span, std::size_t first,
           float* work);

namespace scalar {
void compress(const Projector& projector, const std::uint16_t* in, std::size_t in_stride, std::size_t tokens,
              std::uint16_t* out, std::size_t out_stride);
void compress(const Projector& projector, const float* in, std::size_t in_stride, std::size_t tokens, float* out,
              std::size_t out_stride);
void compress(const Projector& projector, const Fp16* in, std::size_t in_stride, std::size_t tokens, Fp16* out,
              std::size_t out_stride);
void apply(Weights weights, const Expansion& expansion, float keep, const UpdateSpan& span, std::size_t first);
}  // namespace scalar

}  // namespace spillway::kernels
