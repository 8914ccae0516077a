// Refitting a pair of projectors from a gradient G [m, n]: the values that minimise |P Pᵀ G Q Qᵀ − G|, the estimate's
// error (arXiv 2406.10181, section 3.3, without its penalty on the values: orthonormal columns need none).
//
// With Q fixed the best P is known: of each group of rows, the r leading eigenvectors of the Gram matrix of its rows of
// G Q; and the same the other way round. So the pair is found by turns, each of which lowers the error (for whole
// matrices: De Lathauwer, De Moor & Vandewalle, "On the best rank-1 and rank-(R1, ..., RN) approximation", SIMAX 21-4,
// 2000). The first Q is that of G itself.
#pragma once

#include <span>
#include <vector>

#include "spillway/subspace/projector.h"

namespace spillway::subspace {

/// More turns fit the gradient that is refitted from by 0.002 better, and other batches' gradients not at all
/// (research/lsp_quality.py --errors).
inline constexpr int kRefitTurns = 1;

/// Whether all values are numbers, none infinite.
[[nodiscard]] bool finite(std::span<const float> values) noexcept;

/// `gradient` is [p.rows(), q.rows()], row-major. Both projectors get new values with orthonormal columns. Rows without
/// a gradient get the directions of their first elements. Throws Error(bad_input) when the gradient is not finite or of
/// another size; the pair is then unchanged. Allocates m * d floats in one turn, and n * d more in several.
void refit(Projectors& projectors, std::span<const float> gradient, int turns = kRefitTurns);

/// A refit in one turn, as tiles that any threads take in any order: those of a part after all of the part before.
/// Allocates nothing between construction and end but what a thread works on, once for the largest.
class Refit {
 public:
  /// For pairs of which P has at most so many rows times columns. Allocates as many floats.
  explicit Refit(std::size_t elements);

  /// `projectors` gets new values tile by tile; both must stay until the last. What is not finite is passed over: the
  /// rows of a projector that would be refitted from it keep their values.
  void begin(Projectors& projectors, std::span<const float> gradient) noexcept;
  static constexpr unsigned kParts = 3;  ///< Q from G; G Q; P from that
  [[nodiscard]] std::size_t tiles(unsigned part) const noexcept;
  void run(unsigned part, std::size_t tile);

 private:
  Projectors* projectors_ = nullptr;
  std::span<const float> gradient_;
  std::vector<float> half_;  ///< (G Q)ᵀ, [d][m]
};

/// S = Pᵀ G Q, [d, d]: what the step gets from factors by kernels::compress(), here of a gradient that is there.
[[nodiscard]] std::vector<float> project(const Projectors& projectors, std::span<const float> gradient);

}  // namespace spillway::subspace
