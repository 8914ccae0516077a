// Places of the gradients of a pass, and of their sums over micro-batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// The place of one gradient: of a tensor, or of a slice of a table.
struct GradientTarget {
  std::byte* grad = nullptr;
  float* sum = nullptr;                                 ///< null when there is one micro-batch, and for fp32
  RankSums::Place place = {};                           ///< the sums over micro-batches
  state::ComputeType type = state::ComputeType::bf16;   ///< of `grad`
  state::ComputeType given = state::ComputeType::bf16;  ///< as passes hand it over
  std::uint64_t elements = 0;

  /// Values that are to be rounded into `grad`; null: `grad` has them already, or `values` (may be null) are copied.
  [[nodiscard]] const float* unrounded(const std::byte* values) const;
};

class GradientTargets {
 public:
  /// All references must outlive it.
  GradientTargets(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
                  Arenas arenas);

  /// A step begins. `summed`: gradients go to sums first.
  void begin(bool summed) noexcept { summed_ = summed; }
  [[nodiscard]] GradientTarget find_target(const plan::Pass& pass, std::size_t tensor) const;
  /// The place of a slice of so many elements, in a pass of the head.
  [[nodiscard]] GradientTarget find_slice(const plan::Pass& pass, std::uint64_t elements) const {
    return at(pass, 0, 0, elements, type_);
  }
  /// Bytes from the gradient of a tensor that is reduced to its auxiliary fields.
  [[nodiscard]] Bytes auxiliary_of(std::size_t tensor) const {
    return places_[tensor].auxiliary - places_[tensor].grad;
  }

 private:
  /// Place of a layer's tensor in the gradients of its block, and S before its auxiliary fields.
  struct Place {
    Bytes grad = 0;         ///< bytes from the start of the gradients
    std::uint64_t sum = 0;  ///< elements from the start of the sums
    Bytes auxiliary = 0;    ///< as `grad`: the auxiliary fields of what is reduced
  };
  void place_tensors(const state::UpdateRule& rule);
  [[nodiscard]] GradientTarget at(const plan::Pass& pass, Bytes grad, std::uint64_t sum, std::uint64_t elements,
                                  state::ComputeType type) const;

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const Arenas arenas_;
  const state::ComputeType type_, given_;  ///< of gradients as they are kept, and as they are handed over
  const std::uint64_t planned_sums_;       ///< of a gradient, that the plan has places for
  const bool shared_;                      ///< sums go to other processes
  bool summed_ = false;
  std::vector<Place> places_;  ///< by tensor
};

}  // namespace spillway::execute
