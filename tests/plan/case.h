// What the parts of the planner are tested with.
#pragma once

#include "spillway/plan/problem.h"
#include "tests/plan/models.h"

namespace spillway::plan::test {

/// A small model, its budget and rates; `problem()` refers to them.
struct Case {
  explicit Case(const Shape& shape = {.layers = 3, .hidden = 64, .ffn = 256, .chunk_elements = 4096})
      : description(describe(shape)), layout(description.layout()) {
    budget.dram = 1 * GiB;
  }

  /// With a path, so that the planner has something to choose.
  Case& with_path() {
    budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
    rates.paths.push_back({.read = 1e9, .write = 1e9, .mixed = 1e9});
    return *this;
  }

  [[nodiscard]] Problem problem(Durability durability = Durability::none) const {
    return {description, layout, budget, rates, {.durability = durability}};
  }

  Description description;
  state::Layout layout;
  Budget budget;
  Rates rates{.cores = 2, .update = 1e8, .forward = 1e-3, .backward = 3e-3, .head_loss = 1e-4, .head_gradient = 3e-4};
};

}  // namespace spillway::plan::test
