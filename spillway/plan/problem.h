// What one plan is made for.
#pragma once

#include "spillway/plan/description.h"
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

  /// What makes its steps durable.
  [[nodiscard]] Redo redo() const noexcept {
    return {.gradients = durability == Durability::step, .period = kSnapshotPeriod};
  }
  [[nodiscard]] Bytes weight_element() const noexcept { return state::field_bytes(description.type).weight; }
  /// A new schedule of a step.
  [[nodiscard]] Schedule schedule(const Residency& residency, const Lookahead& lookahead) const {
    return make_schedule(description, layout, residency, lookahead, redo());
  }
};

}  // namespace spillway::plan
