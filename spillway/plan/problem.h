// Inputs of one plan.
#pragma once

#include "spillway/plan/description.h"
#include "spillway/plan/saved_activations.h"
#include "spillway/plan/schedule.h"
#include "spillway/plan/storage_need.h"

namespace spillway::plan {

/// References of the problem must outlive it.
struct Problem {
  const Description& description;
  const state::Layout& layout;
  const Budget& budget;
  const Rates& rates;
  Decisions decisions = {};

  [[nodiscard]] Durability durability() const noexcept { return decisions.durability; }
  /// Durability of its steps.
  [[nodiscard]] Redo redo() const noexcept {
    return {.gradients = durability() == Durability::step, .period = kSnapshotPeriod};
  }
  [[nodiscard]] Bytes weight_element() const noexcept { return state::field_bytes(description.weight_dtype).weight; }
  /// Fate of the activations that autograd saves of each layer.
  [[nodiscard]] SavedPlacement saved() const {
    return saved_placement(description, layout, budget.saved_activations, decisions.layers);
  }
  /// A new schedule of a step.
  [[nodiscard]] Schedule schedule(const Placement& placement, const Lookahead& lookahead) const {
    return make_schedule(description, layout, placement, lookahead, redo(), saved());
  }
  /// Bytes of PyTorch's working set on the host, and on the device: with the saved activations that layers hold.
  [[nodiscard]] Bytes work() const { return budget.work + (saved_on_device() ? 0 : held()); }
  [[nodiscard]] Bytes device_work() const { return budget.device->work + (saved_on_device() ? held() : 0); }
  /// This problem with other rates, or with other decisions.
  [[nodiscard]] Problem copy_with(const Rates& other) const noexcept {
    return {description, layout, budget, other, decisions};
  }
  [[nodiscard]] Problem copy_with(const Decisions& other) const noexcept {
    return {description, layout, budget, rates, other};
  }

 private:
  [[nodiscard]] bool saved_on_device() const noexcept {
    return budget.saved_activations.on_device && budget.device.has_value();
  }
  [[nodiscard]] Bytes held() const { return held_bytes(description, budget.saved_activations, decisions.layers); }
};

}  // namespace spillway::plan
