#include "spillway/plan/choice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "spillway/plan/device_blocks.h"
#include "spillway/plan/saved_choice.h"
#include "spillway/plan/search.h"

namespace spillway::plan {
namespace {

/// An axis as the search sees it.
struct Row {
  Axis axis;
  /// True if the budget leaves the axis to the search.
  bool (*is_open)(const Problem& problem);
  /// Compares values of the axis beside the decisions of `from`.
  void (*compare)(const Problem& problem, const Decisions& from, Comparison& comparison);
  /// Values near that of `from`.
  std::vector<Decisions> (*near)(const Problem& problem, const Decisions& from);
};

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

void compare_changes(const Problem& problem, const Decisions& from, Comparison& comparison) {
  comparison.add(Axis::device_changes, from);
  for (const auto& other : other_changes(problem, from)) comparison.add(Axis::device_changes, other);
}

constexpr std::array<Row, 3> kRows = {{
    {Axis::device_blocks, has_open_blocks, compare_device_blocks, near_device_blocks},
    {Axis::device_changes, has_open_changes, compare_changes, other_changes},
    {Axis::saved_activations, has_open_layers, compare_saved_activations, near_saved_activations},
}};

class Search {
 public:
  Search(const Problem& problem, Comparison& comparison, bool is_agreed) : problem_(problem), comparison_(comparison) {
    for (const auto& row : kRows) {
      const bool given = is_agreed && row.axis != Axis::saved_activations;
      if (!given && row.is_open(problem)) rows_.push_back(&row);
    }
  }

  /// Searches the domain of each axis. If the caller asked for layers, each of the fitting values is searched.
  void run_from(Decisions start) {
    const auto asked = read_requested_layers(problem_);
    if (!asked) return search_from(start);
    for (const auto& layers : values_of(problem_, *asked)) {
      if (comparison_.is_led_by(start) && stays(layers)) return;
      start.layers = layers;
      if (!comparison_.is_led_by(start)) search_from(start);
      if (comparison_.is_led_by(start)) add_layers(problem_, comparison_.best().decisions, layers, comparison_);
    }
  }

  /// Compares neighbours of the best values: the choice on one axis may have changed what is best on another.
  void refine() {
    if (rows_.size() < 2) return;
    for (;;) {  // each plan is made once, so this ends
      const auto before = comparison_.best().decisions;
      if (before.layers == SavedLayers{}) return;
      for (const auto* row : rows_) {
        for (const auto& other : row->near(problem_, comparison_.best().decisions)) comparison_.add(row->axis, other);
      }
      if (comparison_.best().decisions == before) return;
    }
  }

 private:
  void search_from(const Decisions& start) {
    if (rows_.empty()) comparison_.add(start);
    auto from = start;
    for (const auto* row : rows_) {
      row->compare(problem_, from, comparison_);
      if (!comparison_.is_led_by(start)) return;
      from = comparison_.best().decisions;
    }
  }

  /// True if layers that would spill can stay in memory: all of them keep, and nothing goes to a path.
  [[nodiscard]] bool stays(const SavedLayers& layers) const {
    const auto& best = comparison_.best();
    return layers.spill > 0 && best.spilling.empty() && best.path_bytes == 0 && !problem_.budget.durability;
  }

  const Problem& problem_;
  Comparison& comparison_;
  std::vector<const Row*> rows_;
};

/// True if own weights are to be compared. A process that keeps all weights is faster, since they cross the network
/// once in a step. Its own weights alone leave more room, which is worth comparing if something goes to a path.
bool may_keep_own(const Problem& problem, const Comparison& comparison) {
  if (!problem.description.is_shared() || problem.budget.own_weights) return false;
  return !comparison.any() || comparison.best().path_bytes > 0;
}

}  // namespace

Plan choose(const Problem& problem, const Comparison::Make& make, const Decisions* agreed) {
  auto start = agreed == nullptr ? read_requested_decisions(problem) : *agreed;
  start.layers = {};
  Comparison comparison(make, start);
  Search search(problem, comparison, agreed != nullptr);
  search.run_from(start);
  if (agreed == nullptr && may_keep_own(problem, comparison)) {
    if (comparison.any()) {
      auto beside = comparison.best().decisions;
      comparison.add(Axis::process_weights, beside);
      beside.own_weights = true;
      comparison.add(Axis::process_weights, beside);
    }
    auto own = start;
    own.own_weights = true;
    search.run_from(own);
  }
  if (!comparison.any()) {
    if (!can_keep_asked(problem))
      refuse_keeping(problem, [&](const Problem& fewer) { return choose(fewer, make, agreed); });
    comparison.refuse();
  }
  search.refine();
  if (problem.budget.saved_activations.keep && !comparison.best().spilling.empty()) comparison.want_memory();
  return std::move(comparison).take();
}

}  // namespace spillway::plan
