// Snapshots of what stays in memory are written in turn, a few in each step.
#include "spillway/plan/step/snapshots.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

TEST(Snapshots, OfWhatStaysAreWrittenInTurn) {
  const auto description = test::describe({.layers = 3});
  const auto layout = description.layout();
  const auto placement = test::placement_of(layout);
  const Lookahead lookahead;
  const Redo redo{.gradients = true, .period = 3};
  StepGraph graph({description, layout, placement, lookahead, redo});
  time_snapshots(graph);
  std::vector<std::uint32_t> turns(redo.period, 0);
  for (Index c = 0; c < graph.chunks(); ++c) {
    EXPECT_EQ(graph.out.snapshot_every[c], redo.period);
    ++turns[graph.out.snapshot_turn[c]];
  }
  EXPECT_LE(*std::ranges::max_element(turns) - *std::ranges::min_element(turns), 1U);
}

}  // namespace
}  // namespace spillway::plan::step
