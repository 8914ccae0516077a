// One weight W [m, n] that trains in its subspace: projectors, the optimizer's state of S, and the step onto the
// weight.
//
//   Matrix matrix({.rows = m, .columns = n, .rank = d});
//   matrix.learn(gradient, anew);                // before the first step: projectors from a real gradient
//   matrix.step(kernels::Weights::bf16, s, step, span);   // S = Pᵀ G Q by kernels::compress() or project()
//
// The size of a step. With orthonormal P and Q an optimizer's direction in the subspace, elements around 1, makes an
// update of W whose elements are around d / sqrt(m n). step() multiplies the learning rate by the reverse, so that one
// that is right for the whole matrix is about right here.
//
// Clipping. The norm of S is that of the gradient's part inside the subspace, which is what is applied; a caller that
// clips counts |S| in the global norm.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/kernels/update.h"
#include "spillway/subspace/bias.h"
#include "spillway/subspace/refit.h"

namespace spillway::subspace {

struct MatrixOptions {
  std::size_t rows = 0, columns = 0;  ///< m, n of the weight
  std::size_t rank = 0;               ///< d; 0: half of the smaller side, rounded down to a multiple of nonzeros
  std::size_t nonzeros = 4;           ///< r
};

/// Share of a weight that an update's decay leaves, of optimizers whose decay does not pass through the gradient.
/// Throws Error(bad_input) where another optimizer decays.
[[nodiscard]] float keep_of(const kernels::UpdateStep& update);
/// Throws Error(bad_input) unless S has [rank, rank] elements and the weight so many.
void check_sizes(std::span<const float> s, std::size_t rank, const kernels::UpdateSpan& weight, std::size_t elements);
/// The optimizer on S, fp32: `delta` becomes its change of a weight that is 0. `moments`: exp_avg and exp_avg_sq, as
/// long as S. `update.weight_decay` is not looked at. `index`: UpdateSpan's.
void make_change(std::span<const float> s, const kernels::UpdateStep& update, std::uint64_t index,
                 std::vector<std::vector<float>>& moments, std::vector<float>& delta);
/// The rank that the options mean. Throws Error(bad_input) as Projector does, and when it would be 0.
[[nodiscard]] std::size_t rank_of(const MatrixOptions& options);

class Matrix {
 public:
  /// Moments 0, projectors 0: refit() or set_projectors() comes before the first step. Allocates (m + n) r + 3 d²
  /// floats.
  explicit Matrix(const MatrixOptions& options);

  [[nodiscard]] std::size_t rank() const noexcept { return projectors_.p.columns(); }
  [[nodiscard]] const Projectors& projectors() const noexcept { return projectors_; }
  [[nodiscard]] bool has_projectors() const noexcept { return refits_ > 0; }
  [[nodiscard]] std::uint64_t refits() const noexcept { return refits_; }
  [[nodiscard]] Bias& bias() noexcept { return bias_; }
  [[nodiscard]] const Bias& bias() const noexcept { return bias_; }
  /// exp_avg and exp_avg_sq (sgd, lion: the first alone), fp32 [d, d].
  [[nodiscard]] std::vector<float>& moment(std::size_t which) { return moments_.at(which); }

  /// Refits projectors from a gradient [m, n]: the first pair for the S that is made next, a later one for the steps
  /// after the next, which carries the moments over when it has applied its S; or, with `anew`, begins them anew, and
  /// their own count of steps with them. Throws as subspace::refit(); nothing has changed then.
  void refit(std::span<const float> gradient, bool anew);
  /// Whether a later pair waits for its step.
  [[nodiscard]] bool refitted() const noexcept { return next_.has_value(); }
  /// Steps before the moments began.
  [[nodiscard]] std::int64_t begun() const noexcept { return begun_; }
  void set_begun(std::int64_t steps) noexcept { begun_ = steps; }
  /// Projectors that come from elsewhere, such as a checkpoint; moments stay, and a pair that waits is forgotten.
  /// Throws Error(bad_input) for other shapes.
  void set_projectors(Projectors projectors, std::uint64_t refits);

  /// The optimizer on S [d, d], fp32, and its delta onto the whole weight. `update.learning_rate` and `weight_decay`
  /// are those of the weight; with decoupled decay (adamw, lion) the weight decays by their product, with the others,
  /// whose decay would have to go through the gradient, an Error(bad_input) says so. `weight.grad` and `weight.moments`
  /// are not looked at. `index` in `weight` must be unique in the run.
  void step(kernels::Weights weights, std::span<const float> s, const kernels::UpdateStep& update,
            const kernels::UpdateSpan& weight);

 private:
  void adopt(std::int64_t steps);

  Projectors projectors_;
  std::optional<Projectors> next_;           ///< of the steps after the next
  bool anew_ = false;                        ///< from which moments begin anew
  std::vector<std::vector<float>> moments_;  ///< two of [d, d]
  std::vector<float> delta_, work_;
  Bias bias_;
  std::uint64_t refits_ = 0;
  std::int64_t begun_ = 0;
};

}  // namespace spillway::subspace
