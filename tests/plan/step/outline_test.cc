// A step for people: boxes that follow what they wait for, few of them however large the model is.
#include "spillway/plan/step/outline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

/// Everything comes from a path, and goes there.
Outline streamed(std::int64_t layers) {
  const auto description = test::describe({.layers = layers});
  const auto layout = description.layout();
  return outline(make_schedule(description, layout, Placement(layout), {}), layout);
}

TEST(StepOutline, ABoxIsBelowThoseThatItWaitsForAndAloneInItsRowOfALane) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto description = test::describe(test::random_shape(random, round));
    const auto layout = description.layout();
    const auto placement = round % 2 == 0 ? test::random_placement_of(layout, random)
                                          : test::random_device_placement(description, layout, random);
    const auto schedule = make_schedule(description, layout, placement, {});
    const auto found = outline(schedule, layout);
    std::set<std::pair<Lane, unsigned>> taken;
    std::size_t tasks = 0;
    for (const auto& box : found.boxes) {
      EXPECT_TRUE(taken.emplace(box.lane, box.row).second);
      tasks += box.tasks;
    }
    EXPECT_EQ(tasks, schedule.tasks.size()) << "of so few layers each is drawn";
    for (const auto& it : found.arrows) EXPECT_LT(found.boxes[it.from].row, found.boxes[it.to].row);
  }
}

TEST(StepOutline, NoArrowFollowsFromOthers) {
  const auto found = streamed(3);
  std::vector<std::set<Index>> behind(found.boxes.size());
  for (const auto& it : found.arrows) {  // in the order of the boxes that they lead to
    EXPECT_FALSE(behind[it.to].contains(it.from));
    behind[it.to].insert(it.from);
    behind[it.to].insert(behind[it.from].begin(), behind[it.from].end());
  }
}

TEST(StepOutline, AFewLayersStandForMany) {
  const auto some = streamed(20), many = streamed(80);
  EXPECT_EQ(many.layers, 81U);  // the norm has a block of its own
  EXPECT_EQ(many.drawn, 4U);
  EXPECT_EQ(many.boxes.size(), some.boxes.size());
  EXPECT_LT(many.boxes.size(), 80U);
  EXPECT_TRUE(std::ranges::any_of(many.arrows, [](const Arrow& it) { return it.skips; }));
  EXPECT_FALSE(std::ranges::any_of(streamed(3).arrows, [](const Arrow& it) { return it.skips; }));
}

}  // namespace
}  // namespace spillway::plan::step
