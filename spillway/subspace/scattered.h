// A projector as published: each row has r values at random places of its own (arXiv 2406.10181, section 3.1), where
// those of the engine's own lie in blocks (projector.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/kernels/element.h"

namespace spillway::subspace {

class Scattered {
 public:
  Scattered() = default;
  /// All values 0. Throws Error(bad_input) as Projector does.
  Scattered(std::size_t rows, std::size_t columns, std::size_t nonzeros);
  /// Places that differ within a row, and values from N(0, 1 / nonzeros): a function of the seed, the tensor's number,
  /// how often it was fitted before, and the side (0: P, 1: Q) alone.
  static Scattered random(const Scattered& shape, std::uint64_t seed, std::uint64_t tensor, std::uint64_t refit,
                          unsigned side);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::size_t nonzeros() const noexcept { return nonzeros_; }
  /// [rows][nonzeros].
  [[nodiscard]] std::vector<float>& values() noexcept { return values_; }
  [[nodiscard]] const std::vector<float>& values() const noexcept { return values_; }
  /// The column of each value.
  [[nodiscard]] const std::vector<std::uint32_t>& places() const noexcept { return places_; }

  /// Values, and then places as numbers: what is saved.
  [[nodiscard]] std::vector<float> pack() const;
  /// The reverse of pack(). Throws Error(bad_input) for another size, and for places outside the columns; nothing has
  /// changed then.
  void unpack(std::span<const float> packed);

 private:
  std::size_t rows_ = 0, columns_ = 0, nonzeros_ = 0;
  std::vector<float> values_;
  std::vector<std::uint32_t> places_;
};

struct ScatteredPair {
  Scattered p, q;  ///< p.columns() == q.columns()
};

/// Rᵀ X, [columns][width]: X is [rows][width].
[[nodiscard]] std::vector<float> reduce(const Scattered& r, std::span<const float> x, std::size_t width);
/// R X, [rows][width]: X is [columns][width].
[[nodiscard]] std::vector<float> expand(const Scattered& r, std::span<const float> x, std::size_t width);
/// Xᵀ, [columns][rows].
[[nodiscard]] std::vector<float> turn(std::span<const float> x, std::size_t rows, std::size_t columns);

/// out[c * out_stride + t] = sum over i of in[t * in_stride + i] * R[i, c], as kernels::compress() has it. `in` and
/// `out` are of `type`. Allocates.
void compress(const Scattered& r, kernels::Element type, const std::byte* in, std::size_t in_stride, std::size_t tokens,
              std::byte* out, std::size_t out_stride);

}  // namespace spillway::subspace
