// What one plan is made for.
#pragma once

#include "spillway/plan/description.h"
#include "spillway/plan/saved_activations.h"
#include "spillway/plan/schedule.h"
#include "spillway/plan/storage_need.h"

namespace spillway::plan {

/// What is referred to must outlive it.
struct Problem {
  const Description& description;
  const state::Layout& layout;
  const Budget& budget;
  const Rates& rates;
  Durability durability = Durability::none;
  SavedLayers layers = {};  ///< that do not recompute what autograd saves; `budget` has what they hold

  /// What makes its steps durable.
  [[nodiscard]] Redo redo() const noexcept {
    return {.gradients = durability == Durability::step, .period = kSnapshotPeriod};
  }
  [[nodiscard]] Bytes weight_element() const noexcept { return state::field_bytes(description.type).weight; }
  /// What becomes of what autograd saves of each layer.
  [[nodiscard]] SavedPlacement saved() const { return saved_placement(description, layout, budget.saved, layers); }
  /// A new schedule of a step.
  [[nodiscard]] Schedule schedule(const Placement& placement, const Lookahead& lookahead) const {
    return make_schedule(description, layout, placement, lookahead, redo(), saved());
  }
  /// This problem with other rates.
  [[nodiscard]] Problem with(const Rates& other) const noexcept {
    return {description, layout, budget, other, durability, layers};
  }
};

}  // namespace spillway::plan
