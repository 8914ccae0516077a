// Every axis of a plan is a row of a search, and a row's neighbours are values of its axis alone.
#include "spillway/plan/axes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "spillway/plan/choice.h"
#include "spillway/plan/device_choice.h"
#include "spillway/plan/search.h"
#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

template <class Row>
void add_axes(std::span<const Row> rows, Axes& out) {
  for (const auto& row : rows) out.set(static_cast<std::size_t>(row.axis));
}

TEST(Axes, EachIsARowOfTheSearch) {
  Axes searched;
  add_axes(decision_rows(), searched);
  add_axes(fitting_rows(), searched);
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) EXPECT_TRUE(searched.test(axis)) << kAxes[axis].name;
}

TEST(Axes, EachHasItsOwnNameTitleAndReason) {
  std::set<std::string> words;
  for (const auto& axis : kAxes) {
    for (const auto* word : {axis.name, axis.title, axis.reason}) {
      EXPECT_FALSE(std::string(word).empty()) << axis.name;
      words.insert(word);
    }
    EXPECT_EQ(std::string(axis.reason).back(), '.') << axis.name;
  }
  EXPECT_GE(words.size(), 3 * kAxes.size() - 2) << "two titles are the name";
}

template <class Row>
void expect_ranges_nest(std::span<const Row> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_LT(i + rows[i].below, rows.size()) << traits(rows[i].axis).name;
    EXPECT_NE(rows[i].is_open, nullptr);
    EXPECT_NE(rows[i].compare, nullptr);
    expect_ranges_nest(rows.subspan(i + 1, rows[i].below));
  }
}

TEST(Axes, RowsBelowARowAreInItsTable) {
  expect_ranges_nest(decision_rows());
  expect_ranges_nest(fitting_rows());
}

/// The decisions with the value of one axis from others.
Decisions with_value_of(Axis axis, Decisions decisions, const Decisions& from) {
  if (axis == Axis::device_blocks) decisions.blocks = from.blocks;
  if (axis == Axis::saved_activations) decisions.layers = from.layers;
  if (axis == Axis::device_changes) decisions.applies_changes = from.applies_changes;
  return decisions;
}

/// A machine with a choice on each of the three axes that have neighbours.
test::Case make_machine(std::mt19937& random) {
  test::Shape shape{.layers = 8, .tied = false, .tokens = 16, .micro_batches = 1, .chunk_elements = 4096};
  shape.subspace = "up|down";
  test::Case out(shape);
  out.rates.device_update = 1e10;
  out.rates.to_device = out.rates.from_device = 1e9;
  out.rates.kept_forward = out.rates.forward;
  out.rates.kept_backward = 0.6 * out.rates.backward;
  out.budget.device = DeviceTier{.capacity = (3 + random() % 12) * 256 * KiB};
  out.budget.saved_activations = {
      .blocks = {1, 2, 3, 4, 5, 6, 7, 8}, .token_bytes = 4096, .on_device = random() % 2 == 0, .layers = 8};
  return out;
}

TEST(Axes, NeighboursOfAValueAreOtherValuesOfItsAxisAlone) {
  std::mt19937 random(17);
  std::map<Axis, std::size_t> checked;
  for (int round = 0; round < 40; ++round) {
    const auto it = make_machine(random);
    const auto problem = it.problem();
    const auto plan = if_it_fits([&] { return make_plan(it.description, it.layout, it.budget, it.rates); });
    if (!plan) continue;
    const auto blocks = DeviceChoice(problem).may_live();
    const auto layers = most_keeping(it.layout, it.budget.saved_activations);
    for (const auto& row : decision_rows()) {
      if (row.near == nullptr || !row.is_open(problem)) continue;
      for (const auto& value : plan->compared_on(row.axis)) {
        for (const auto& other : row.near(problem, value.decisions)) {
          EXPECT_NE(other, value.decisions) << traits(row.axis).name;
          EXPECT_EQ(with_value_of(row.axis, value.decisions, other), other) << traits(row.axis).name;
          EXPECT_LE(other.blocks.device_resident + other.blocks.device_updated, blocks);
          EXPECT_LE(other.layers.keep + other.layers.spill, layers);
          ++checked[row.axis];
        }
      }
    }
  }
  for (const auto& row : decision_rows()) {
    if (row.near == nullptr) continue;
    EXPECT_GT(checked[row.axis], 10U) << traits(row.axis).name;
  }
}

/// Plans that are counted, whose time depends on their decisions alone.
class CountedPlans {
 public:
  Plan make(const Decisions& decisions) {
    made_.push_back(decisions);
    Plan out;
    out.decisions = decisions;
    out.keeping.resize(decisions.layers.keep);
    const auto part = static_cast<double>(decisions.blocks.device_resident) - 2;
    out.prediction.step_seconds = 10 + part * part - static_cast<double>(decisions.layers.keep);
    return out;
  }
  [[nodiscard]] const std::vector<Decisions>& made() const { return made_; }

 private:
  std::vector<Decisions> made_;
};

TEST(Choice, MakesEachPlanOnce) {
  std::mt19937 random(2);
  const auto it = make_machine(random);
  CountedPlans plans;
  const auto plan = choose(it.problem(), [&](const Decisions& decisions) { return plans.make(decisions); });
  EXPECT_GT(plans.made().size(), 5U);
  EXPECT_GT(plan.decisions.layers.keep, 0U);
  for (const auto& decisions : plans.made()) EXPECT_EQ(std::ranges::count(plans.made(), decisions), 1);
}

TEST(Choice, AGivenAxisIsNotSearched) {
  std::mt19937 random(2);
  const auto it = make_machine(random);
  CountedPlans plans;
  Given given{.decisions = {.blocks = {.device_resident = 1}, .applies_changes = true}, .axes = list_shared_axes()};
  const auto plan = choose(
      it.problem(), [&](const Decisions& decisions) { return plans.make(decisions); }, given);
  EXPECT_EQ(plan.decisions.blocks.device_resident, 1U);
  EXPECT_TRUE(plan.decisions.applies_changes);
  EXPECT_TRUE(plan.compared_on(Axis::device_blocks).empty());
  EXPECT_FALSE(plan.compared_on(Axis::saved_activations).empty()) << "each rank chooses its own";
}

}  // namespace
}  // namespace spillway::plan
