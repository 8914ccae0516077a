// Gram matrices of a few neighbouring elements of many lines: what a group of a projector's rows is refitted from.
//
// In double, where the product of two floats is exact, and each element is a sum in the order of the lines: the same
// bits on every instruction set.
#pragma once

#include <cstddef>

namespace spillway::kernels {

/// Rows of a Gram matrix that are made together; a matrix has a multiple of them.
inline constexpr std::size_t kGramTile = 8;
/// Lines that are widened together.
inline constexpr std::size_t kGramLines = 32;

/// Rows, and columns, of the matrix that add_gram() adds to.
[[nodiscard]] constexpr std::size_t gram_side(std::size_t n) noexcept {
  return (n + kGramTile - 1) / kGramTile * kGramTile;
}
/// Doubles that add_gram() works on.
[[nodiscard]] constexpr std::size_t gram_work(std::size_t n) noexcept {
  return kGramLines * gram_side(n);
}

/// gram[i * gram_side(n) + k] += sum over `count` lines of line[i] * line[k], for k <= i < n; the other elements come
/// to hold anything. A line is n floats, `stride` from the one before. No overlap; any alignment; n and count may be 0.
void add_gram(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* gram, double* work);

namespace scalar {
void add_gram(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* gram);
}  // namespace scalar

}  // namespace spillway::kernels
