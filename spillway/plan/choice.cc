#include "spillway/plan/choice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "spillway/plan/device_blocks.h"
#include "spillway/plan/saved_choice.h"
#include "spillway/plan/search.h"

namespace spillway::plan {
namespace {

using Row = DecisionSearch::Row;

bool has_open_blocks(const Problem& problem) {
  const auto& device = problem.budget.device;
  return device && !device->state && why_no_device_blocks(problem.description, problem.layout, problem.rates).empty();
}

bool has_open_layers(const Problem& problem) {
  return !problem.budget.saved_activations.keep && most_keeping(problem.layout, problem.budget.saved_activations) > 0;
}

bool has_open_changes(const Problem& problem) {
  const auto& device = problem.budget.device;
  if (!device || device->applies_changes) return false;
  const auto chunks = static_cast<Index>(problem.layout.chunks().size());
  for (Index c = 0; c < chunks; ++c) {
    if (can_take_change(problem.description, problem.layout, c)) return true;
  }
  return false;
}

std::vector<Decisions> other_changes(const Problem& /*problem*/, const Decisions& from) {
  auto out = from;
  out.applies_changes = !from.applies_changes;
  return {out};
}

void compare_changes(const Problem& problem, const Decisions& from, Comparison& comparison,
                     const DecisionSearch& /*below*/) {
  comparison.add(Axis::device_changes, from);
  for (const auto& other : other_changes(problem, from)) comparison.add(Axis::device_changes, other);
}

bool has_requested_layers(const Problem& problem) {
  return read_requested_layers(problem).has_value();
}

bool has_open_weights(const Problem& problem) {
  return problem.description.is_shared() && !problem.budget.own_weights;
}

/// A process that keeps all weights is faster, since they cross the network once in a step. Its own weights alone leave
/// more room. They are compared if something goes to a path, or nothing has room.
void compare_process_weights(const Problem& /*problem*/, const Decisions& from, Comparison& comparison,
                             const DecisionSearch& below) {
  below.run_from(from);
  const auto keep_own = [](Decisions decisions) {
    decisions.own_weights = true;
    return decisions;
  };
  if (comparison.any()) {
    if (comparison.best().path_bytes == 0) return;
    const auto beside = comparison.best().decisions;
    comparison.add(Axis::process_weights, beside);
    comparison.add(Axis::process_weights, keep_own(beside));
  }
  below.run_from(keep_own(from));
}

/// Steps that are to survive only a closed run may turn out to need no files.
bool has_open_durability(const Problem& problem) {
  return problem.budget.durability.value_or(Durability::checkpoint) == Durability::checkpoint;
}

/// Ends the search beside one durability.
void finish(const Problem& problem, const DecisionSearch& search, Comparison& comparison) {
  search.refine();
  if (problem.budget.saved_activations.keep && !comparison.best().spilling.empty()) comparison.want_memory();
}

/// True if weights and states are all in memory.
bool is_in_memory(const Placement& placement) {
  return std::ranges::all_of(placement.chunks,
                             [](const auto& it) { return it.weight.in_memory() && it.state.in_memory(); });
}

/// Plans of different durability are no rivals, since a promise to survive has no price in seconds. Steps are durable
/// as soon as something is on a path. Checkpoints are needless on a path if all of their bytes are in memory.
void compare_durability(const Problem& problem, const Decisions& from, Comparison& comparison,
                        const DecisionSearch& below) {
  const auto compare = [&](Durability durability) {
    auto start = from;
    start.durability = durability;
    comparison.restart(start);
    below.run_from(start);
    if (comparison.any()) finish(problem, below, comparison);
  };
  const auto& asked = problem.budget.durability;
  if (!asked && spills(problem)) return compare(Durability::step);  // without a look at the plan that is not durable
  compare(asked.value_or(Durability::none));
  if (!comparison.any()) return;
  if (asked && !problem.budget.resumes && is_in_memory(comparison.best().placement)) return compare(Durability::none);
  if (asked || comparison.best().path_bytes == 0) return;
  const bool ample = comparison.is_ample();
  compare(Durability::step);
  if (!ample) comparison.want_memory();
}

constexpr std::array<Row, 6> kRows = {{
    {.axis = Axis::durability, .is_open = has_open_durability, .compare = compare_durability, .below = 5},
    {.axis = Axis::process_weights, .is_open = has_open_weights, .compare = compare_process_weights, .below = 4},
    {.axis = Axis::saved_activations, .is_open = has_requested_layers, .compare = compare_requested_layers, .below = 3},
    {.axis = Axis::device_blocks,
     .is_open = has_open_blocks,
     .compare = compare_device_blocks,
     .near = near_device_blocks},
    {.axis = Axis::device_changes, .is_open = has_open_changes, .compare = compare_changes, .near = other_changes},
    {.axis = Axis::saved_activations,
     .is_open = has_open_layers,
     .compare = compare_saved_activations,
     .near = near_saved_activations},
}};

}  // namespace

std::span<const DecisionSearch::Row> decision_rows() noexcept {
  return kRows;
}

Plan choose(const Problem& problem, const Comparison::Make& make, const Given& given) {
  auto start = given.axes.any() ? given.decisions : read_requested_decisions(problem);
  start.layers = {};
  if (!has(given.axes, Axis::durability)) start.durability = problem.budget.durability.value_or(Durability::none);
  Comparison comparison(make, start);
  const DecisionSearch search(problem, kRows, comparison, given.axes);
  search.run_from(start);
  if (!comparison.any()) {
    start.durability = comparison.start().durability;
    auto same = Given{.decisions = start, .axes = given.axes};
    same.axes.set(static_cast<std::size_t>(Axis::durability));
    const auto asked = problem.copy_with(start);
    if (!can_keep_asked(asked)) {
      refuse_keeping(asked, [&](const Problem& fewer) { return choose(fewer, make, same); });
    }
    comparison.refuse();
  }
  finish(problem, search, comparison);
  return std::move(comparison).take();
}

}  // namespace spillway::plan
