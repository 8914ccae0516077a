// One search for all decisions: coordinate by coordinate over the rows of a table of axes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/plan/axes.h"

namespace spillway::plan {

/// `Problem` is the input of the plans, `Values` has a value for each axis. `Comparison` makes the plan of each value
/// once. Its functions: `add(values)` makes a plan, `is_led_by(start)` asks for a best plan of the search that began
/// there, `best_values()` returns the values of the best plan, and `has_tradeoff()` asks whether the choice on one axis
/// may have changed the best value of another.
template <class Problem, class Values, class Comparison>
class CoordinateSearch {
 public:
  /// An axis as the search sees it.
  struct Row {
    Axis axis;
    /// True if the problem leaves the axis to the search.
    bool (*is_open)(const Problem& problem);
    /// Compares the domain of the axis, beside the other values of `from`. `below` searches the rows of `below`.
    void (*compare)(const Problem& problem, const Values& from, Comparison& comparison, const CoordinateSearch& below);
    /// Neighbours of a value, beside the other values of `from`. Null: `compare` leaves none.
    std::vector<Values> (*near)(const Problem& problem, const Values& from) = nullptr;
    /// Number of following rows that `compare` searches again for each value. 0: values are compared beside the best
    /// values of the rows before.
    std::size_t below = 0;
  };

  /// `given`: axes whose value the start of the search has.
  CoordinateSearch(const Problem& problem, std::span<const Row> rows, Comparison& comparison, Axes given = {})
      : problem_(problem), rows_(rows), comparison_(comparison), given_(given) {}

  /// Compares the open axes one after the other, each beside the best values of those before it.
  void run_from(const Values& start) const {
    auto from = start;
    bool is_searched = false;
    for (std::size_t i = 0; i < rows_.size(); i += 1 + rows_[i].below) {
      const auto& row = rows_[i];
      const auto below = search_below(i);
      if (is_open(row)) {
        row.compare(problem_, from, comparison_, below);
      } else if (row.below > 0) {
        below.run_from(from);
      } else {
        continue;
      }
      is_searched = true;
      if (!comparison_.is_led_by(start)) return;
      from = comparison_.best_values();
    }
    if (!is_searched) comparison_.add(start);
  }

  /// Compares neighbours of the best values while several axes are open and a neighbour is better. Each plan is made
  /// once, so this ends.
  void refine() const {
    std::vector<const Row*> rows;
    for (const auto& row : rows_) {
      if (row.near != nullptr && is_open(row)) rows.push_back(&row);
    }
    if (rows.size() < 2) return;
    while (comparison_.has_tradeoff()) {
      const auto before = comparison_.best_values();
      for (const auto* row : rows) {
        for (const auto& other : row->near(problem_, comparison_.best_values())) comparison_.add(row->axis, other);
      }
      if (comparison_.best_values() == before) return;
    }
  }

 private:
  [[nodiscard]] bool is_open(const Row& row) const { return !has(given_, row.axis) && row.is_open(problem_); }
  [[nodiscard]] CoordinateSearch search_below(std::size_t row) const {
    return {problem_, rows_.subspan(row + 1, rows_[row].below), comparison_, given_};
  }

  const Problem& problem_;
  std::span<const Row> rows_;
  Comparison& comparison_;
  Axes given_;
};

}  // namespace spillway::plan
