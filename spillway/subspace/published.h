// One weight W [m, n] that trains in a subspace as published (arXiv 2406.10181, algorithm 1): scattered projectors
// whose values are learned by descent, a check of what they miss, and moments that the transfer matrices carry over.
//
//   PublishedMatrix matrix({.shape = {.rows = m, .columns = n, .rank = d}, .seed = 7});
//   matrix.refit(gradient);              // before the first step
//   matrix.step(kernels::Weights::bf16, s, step, span);     // S = Pᵀ G Q by kernels::compress()
//   matrix.refit(gradient);              // every so many steps: new ones where more than alpha is missed
//
// Differences from Matrix (matrix.h) are those of the method. Projectors are not orthonormal, so a step is W −= rate *
// P * direction * Qᵀ with the rate as it is, and what they miss is measured on a gradient. The first pair is learned,
// too: by chance alone it would miss several times the gradient. Each matrix has a pair of its own, where the released
// code shares one among all matrices of a shape.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/kernels/update.h"
#include "spillway/subspace/descent.h"
#include "spillway/subspace/matrix.h"

namespace spillway::subspace {

/// A pair among all of a run: what its places and first values are drawn for.
struct PairKey {
  std::uint64_t seed = 0, number = 0;  ///< of the run, and the weight's own in it
  std::uint64_t refits = 0;            ///< pairs of the weight before this one
};
/// A pair of this shape, learned by descent for a gradient [m, n]. Throws as descend().
[[nodiscard]] Projectors learn(const Projectors& shape, const PairKey& key, std::span<const float> gradient,
                               const DescentOptions& options = {});

struct PublishedOptions {
  MatrixOptions shape;
  double threshold = 0.9;              ///< alpha: a share of a gradient that may be missed
  std::uint64_t seed = 0, number = 0;  ///< of the run, and the weight's own in it: what places are drawn for
  DescentOptions descent = {};
};

class PublishedMatrix {
 public:
  /// Throws Error(bad_input) as Matrix does.
  explicit PublishedMatrix(const PublishedOptions& options);

  [[nodiscard]] std::size_t rank() const noexcept { return pair_.p.columns(); }
  [[nodiscard]] const Projectors& pair() const noexcept { return pair_; }
  [[nodiscard]] std::uint64_t refits() const noexcept { return refits_; }
  /// True if a later pair waits for its step.
  [[nodiscard]] bool refitted() const noexcept { return next_.has_value(); }
  /// The share of the gradient that was missed when refit() last looked, by the pair that it left; 0 before.
  [[nodiscard]] double missed() const noexcept { return missed_; }
  /// exp_avg and exp_avg_sq (sgd, lion: the first alone), fp32 [d, d].
  [[nodiscard]] std::vector<float>& moment(std::size_t which) { return moments_.at(which); }

  /// Looks at a gradient [m, n]. The first pair is learned from it for the S that is made next. A later one is learned
  /// where the pair that is there misses more than the threshold, at new places, for the steps after the next: step()
  /// carries the moments over when it has applied its S. Throws as descend(); nothing has changed then.
  void refit(std::span<const float> gradient);
  /// A state from elsewhere; moments stay, and a pair that waits is forgotten. `p` and `q` are of pack().
  /// Throws Error(bad_input) for other shapes; nothing has changed then.
  void restore(std::span<const float> p, std::span<const float> q, std::uint64_t refits, double missed);

  /// As Matrix::step().
  void step(kernels::Weights weights, std::span<const float> s, const kernels::UpdateStep& update,
            const kernels::UpdateSpan& weight);

 private:
  PublishedOptions options_;
  Projectors pair_;
  std::optional<Projectors> next_;           ///< of the steps after the next
  std::vector<std::vector<float>> moments_;  ///< two of [d, d]
  std::vector<float> delta_, work_;
  std::uint64_t refits_ = 0;
  double missed_ = 0;
};

}  // namespace spillway::subspace
