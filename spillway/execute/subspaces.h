// The projectors of a run, in DRAM, for visits: what compresses a layer's gradient, learns projectors from it, and
// keeps an eye on what they miss (docs/decisions/0004-subspaces.md).
//
// The state of a chunk has a copy of its projectors: those of its last update. A gradient carries the ones that it was
// made with, so that an update finds new ones where it needs them. This room's copy follows: what a step has learned
// counts when the step is applied, and is taken back when it is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/subspace/fit.h"

namespace spillway::execute {

class Subspaces {
 public:
  /// Projectors of every matrix that learns in a subspace, none of them learned. References must outlive it.
  Subspaces(const plan::Description& description, const state::Layout& layout);

  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Between steps: as they lie in the state group of the tensor's chunk.
  void restore(std::size_t tensor, const std::byte* pair);

  /// A training step begins, after so many updates; gradients come multiplied by `scale`.
  void begin(std::int64_t updates, double scale);
  /// Whether projectors are to be learned from this step's gradient before any of S is made.
  [[nodiscard]] bool learns(std::size_t tensor) const;
  /// From a gradient [rows, columns], fp32, which stands for the step's: that of the first micro-batch. What is not
  /// finite is passed over; S is then to be made all the same, and makes the step one that is skipped.
  void learn(std::size_t tensor, std::span<const float> gradient);
  /// [0]: of the output's gradient (P), [1]: of the input (Q).
  [[nodiscard]] kernels::Projector side(std::size_t tensor, unsigned side) const;
  /// Another number whenever the pair has changed; never 0.
  [[nodiscard]] std::uint64_t version(std::size_t tensor) const { return at(tensor).version; }
  [[nodiscard]] bool fitted(std::size_t tensor) const { return at(tensor).record.fits > 0; }
  /// The signs z [columns] of this step, and the sum over micro-batches of G z [rows] (subspace/bias.h).
  void signs(std::size_t tensor, std::span<float> signs) const;
  void sample(std::size_t tensor, std::span<const float> seen);
  /// The step's S is complete, with this sum of squares: writes what an update needs to `pair`.
  void close(std::size_t tensor, double s_square, std::byte* pair);
  /// The step has ended: applied, or skipped, and then what it learned is forgotten.
  void end(bool applied);

  /// Of the last step: the running estimate of |G - P P' G Q Q'| / |G|, and how often projectors were learned so far.
  [[nodiscard]] double error(std::size_t tensor) const;
  [[nodiscard]] std::uint64_t fits(std::size_t tensor) const {
    return static_cast<std::uint64_t>(at(tensor).kept.fits);
  }

 private:
  struct Matrix {
    subspace::Pair pair;
    state::FitRecord kept, record;         ///< of the steps applied; with this step's
    std::optional<subspace::Pair> before;  ///< of a step that learned new ones: those before it
    std::vector<float> seen;               ///< G z so far; empty: none
    std::uint64_t version = 1;
  };
  [[nodiscard]] const Matrix& at(std::size_t tensor) const;
  [[nodiscard]] Matrix& at(std::size_t tensor);

  const plan::Description& description_;
  const state::Layout& layout_;
  std::vector<std::optional<Matrix>> matrices_;  ///< by tensor
  bool any_ = false;
  std::int64_t updates_ = 0;
  double scale_ = 1;
};

}  // namespace spillway::execute
