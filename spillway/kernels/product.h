// Products of bf16 matrices, a tile of the result at a time: out = round(alpha * (a b) + beta * add).
//
// Each element is a sum in fp32 of fused multiplications, in the order of the inner index: the same bits on every
// instruction set, and wherever tiles begin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::kernels {

/// Rows and columns of a tile of the result.
inline constexpr std::size_t kProductTile = 96;
/// The part of the inner index that is multiplied at a time.
inline constexpr std::size_t kProductDepth = 192;
/// Floats that multiply_tile() works on.
inline constexpr std::size_t kProductWork = kProductTile * (2 * kProductDepth + kProductTile);

/// Matrices by rows, which are `stride` elements apart; no overlap but that `turned` may be `out`.
struct Product {
  const std::uint16_t* a = nullptr;    ///< [rows, depth]
  const std::uint16_t* b = nullptr;    ///< [depth, columns]
  const std::uint16_t* add = nullptr;  ///< [rows, columns], as far apart as those of `out`; null: beta does not count
  std::uint16_t* out = nullptr;        ///< [rows, columns]
  std::uint16_t* turned = nullptr;     ///< [columns, rows]: the result once more; may be null
  std::size_t a_stride = 0, b_stride = 0, stride = 0, turned_stride = 0;
  std::size_t rows = 0, columns = 0, depth = 0;
  float alpha = 1, beta = 0;
};

/// The elements of the tile that begins at `row` and `column`, multiples of kProductTile. `work` may be of any content.
void multiply_tile(const Product& product, std::size_t row, std::size_t column, float* work);

namespace scalar {
/// The whole result.
void multiply(const Product& product);
}  // namespace scalar

}  // namespace spillway::kernels
