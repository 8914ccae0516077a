// How much of its gradients a pair of projectors misses, without forming one.
//
// With orthonormal columns |G − P Pᵀ G Q Qᵀ|² = |G|² − |S|². |S| is known; |G|² is the expectation of |G z|² over signs
// z (Hutchinson, 1989), and G z = dYᵀ (X z) takes two products with a vector and adds up over micro-batches. One such
// sample is noisy; the mean over steps is what a refit is decided by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::subspace {

/// The signs z of a step, 1 or -1: a function of the seed, the matrix's number among those that are trained in
/// subspaces, and the step alone.
void draw_signs(std::uint64_t seed, std::uint64_t matrix, std::int64_t step, std::span<float> signs);

/// Plain data, part of what is saved.
struct Bias {
  double captured = 0;  ///< running mean of |S|²
  double whole = 0;     ///< running mean of |G z|²
  std::uint64_t samples = 0;

  /// A step's squares; what is not finite is left out.
  void add(double s_square, double gz_square) noexcept;
  /// sqrt(1 - captured / whole): 0 nothing is missed, 1 all; within sampling noise. 0 before the first sample.
  [[nodiscard]] double error() const noexcept;
  /// After a new fit.
  void restart() noexcept { *this = {}; }
};

/// Whether a matrix is refitted after so many updates, whatever its projectors miss: each once in `every` of them (0:
/// never), in turn by their numbers among those that are trained in subspaces, so that no step refits all of them.
[[nodiscard]] constexpr bool rotates(std::uint64_t every, std::uint64_t updates, std::uint64_t matrix) noexcept {
  return every > 0 && updates > 0 && (updates + matrix) % every == 0;
}

}  // namespace spillway::subspace
