// A sparse projector that owns its values, and the places of those that are scattered: see kernels::Projector for where
// they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/kernels/project.h"

namespace spillway::subspace {

enum class Places : std::uint8_t {
  blocks,     ///< the columns of a row's group
  scattered,  ///< any columns of each row, as published (arXiv 2406.10181, section 3.1)
};

class Projector {
 public:
  Projector() = default;
  /// All values and places 0. Throws Error(bad_input) unless 1 <= nonzeros <= columns <= rows and columns is a multiple
  /// of nonzeros.
  Projector(std::size_t rows, std::size_t columns, std::size_t nonzeros, Places places = Places::blocks);
  /// Values from N(0, 1 / nonzeros), and scattered places that differ within a row: a function of the seed, the
  /// tensor's number, how often it was fitted before, and the side (0: P, 1: Q) alone. What the published method starts
  /// from.
  static Projector random(const Projector& shape, std::uint64_t seed, std::uint64_t tensor, std::uint64_t refit,
                          unsigned side);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::size_t nonzeros() const noexcept { return nonzeros_; }
  /// Valid until the projector is changed or gone.
  [[nodiscard]] kernels::Projector view() const noexcept {
    return {values_.data(), rows_, columns_, nonzeros_, places_.empty() ? nullptr : places_.data()};
  }
  [[nodiscard]] bool is_scattered() const noexcept { return !places_.empty(); }
  /// Value `s` of row `row`, and its column.
  [[nodiscard]] float value(std::size_t row, std::size_t s) const { return values_[s * view().stride() + row]; }
  [[nodiscard]] std::size_t place(std::size_t row, std::size_t s) const {
    return is_scattered() ? places_[s * view().stride() + row] : view().group_of(row) * nonzeros_ + s;
  }
  void set(std::size_t row, std::size_t s, float value) { values_[s * view().stride() + row] = value; }
  /// All values as they lie, padding included: what is saved.
  [[nodiscard]] std::vector<float>& values() noexcept { return values_; }
  [[nodiscard]] const std::vector<float>& values() const noexcept { return values_; }
  /// Columns of the values, which lie alike; none of blocks.
  [[nodiscard]] std::vector<std::uint32_t>& places() noexcept { return places_; }
  [[nodiscard]] const std::vector<std::uint32_t>& places() const noexcept { return places_; }

 private:
  std::size_t rows_ = 0, columns_ = 0, nonzeros_ = 0;
  std::vector<float> values_;
  std::vector<std::uint32_t> places_;
};

struct Projectors {
  Projector p, q;  ///< p.columns() == q.columns(); both scattered, or none
};

}  // namespace spillway::subspace
