// The table of kinds is the only list of them: whatever a schedule has is in it.
#include "spillway/plan/kinds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "spillway/plan/routes.h"
#include "spillway/plan/schedule.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

bool in_table(const Task& task) {
  if (task.op == Op::compute) return task.lane == Lane::compute && task.what.kind == ObjectKind::pass;
  if (task.op == Op::update) return task.lane == Lane::update || task.lane == Lane::device_update;
  if (task.op == Op::refit) return task.lane == Lane::refit;
  if (task.op == Op::apply) return task.lane == Lane::device_update && task.what.kind == ObjectKind::change;
  if (task.lane == Lane::network) {
    return task.what.kind == ObjectKind::pass || (task.what.kind == ObjectKind::auxiliary && gathers(task.op));
  }
  return (traits(task.what.kind).lanes >> static_cast<unsigned>(task.lane) & 1) != 0;
}

TEST(Kinds, EveryTaskOfASchedule) {
  const auto labels = kind_labels();
  std::set<std::string> seen;
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    auto shape = test::random_shape(random, round);
    if (round % 3 == 0) shape.subspace = "up|down";
    const bool changes = round == 3, shared = round % 2 == 0;
    if (changes) shape = {.layers = 2, .subspace = "up|down"};
    if (shared) shape.virtual_ranks = 2;
    auto description = test::describe(shape);
    if (round % 3 == 1) description.feature_bytes = 8192;
    if (shared) description.world = {.size = 2, .rank = random() % 2, .local = 1 + random() % 2};
    const auto layout = description.layout();
    auto placement = round % 2 == 0 ? test::random_placement_of(layout, random)
                                    : test::random_device_placement(description, layout, random);
    if (changes) placement = test::changing_placement(description, layout);
    if (round % 4 < 2) placement.features.keep();
    const auto saved = test::random_saved(layout, random);
    const Redo redo{.gradients = random() % 2 == 0, .period = 3};
    for (const auto& task : make_schedule(description, layout, placement, {}, redo, saved).tasks) {
      ASSERT_TRUE(in_table(task)) << name_of(task.lane) << " " << traits(task.what.kind).name;
      if (task.op == Op::compute) continue;
      const auto label = label_of(task.op, task.lane, task.what.kind);
      const auto found = std::ranges::find(labels, label.name, &KindLabel::name);
      ASSERT_NE(found, labels.end()) << label.name;
      EXPECT_EQ(std::string(found->colour), label.colour);
      seen.insert(label.name);
    }
  }
  EXPECT_EQ(seen.size() + kPasses.size(), labels.size()) << "a kind that no schedule has";
}

TEST(Kinds, NamesTellThemApart) {
  std::set<std::string> names, lanes;
  for (const auto& label : kind_labels()) EXPECT_TRUE(names.insert(label.name).second) << label.name;
  for (const auto& lane : kLanes) EXPECT_TRUE(lanes.insert(lane.name).second) << lane.name;
}

TEST(Kinds, LanesThatMoveSomethingSayWhat) {
  for (const auto& lane : kLanes) {
    const bool transfers = lane.server == Server::paths || lane.server == Server::link;
    EXPECT_EQ(lane.moves != nullptr, transfers) << lane.name;
  }
}

}  // namespace
}  // namespace spillway::plan
