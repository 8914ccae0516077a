// Where objects live, and what follows for the update of a chunk.
#include "spillway/plan/placement.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

class Placed : public ::testing::Test {
 protected:
  const Description description_ = test::describe({.layers = 3});
  const state::Layout layout_ = description_.layout();
};

TEST_F(Placed, EverythingIsOnPathsAtFirst) {
  const Placement placement(layout_);
  EXPECT_EQ(placement.chunks.size(), layout_.chunks().size());
  EXPECT_EQ(placement.boundaries.size(), 4U);  // a norm is the last layer
  EXPECT_FALSE(placement.device);
  EXPECT_EQ(placement, test::placement_of(layout_, {false, false, false, false}));
  EXPECT_FALSE(placement[0].weight.in_memory());
}

TEST_F(Placed, APassTakesALayerAtOnceAndATableSliceBySlice) {
  for (const auto& block : layout_.blocks()) {
    auto next = static_cast<Index>(block.first_chunk);
    for (const auto& range : pass_ranges(block, block.chunks)) {
      EXPECT_EQ(range.first, next);
      EXPECT_EQ(range.count, traits(block.role).is_table ? 1 : block.chunks);
      next = range.end();
    }
    EXPECT_EQ(next, block.first_chunk + block.chunks);
    EXPECT_TRUE(pass_ranges(block, 0).empty());
    ASSERT_EQ(pass_ranges(block, 1).size(), 1U);
    EXPECT_EQ(pass_ranges(block, 1).front().count, 1U) << "as of a layer that is frozen but for a chunk";
  }
}

TEST_F(Placed, WhatIsKeptIsOnTheHostUnlessItIsOnADevice) {
  TierId home, there{TierKind::device};
  home.keep();
  there.keep();
  EXPECT_EQ(home, (TierId{TierKind::host}));
  EXPECT_EQ(there, (TierId{TierKind::device}));
}

TEST_F(Placed, NodesAreOfWhatIsInHostMemory) {
  auto placement = test::placement_of(layout_, {.gradient = false});
  placement.chunks[1].state = {};
  placement.chunks[2].live_on_device();
  placement.chunks[3].weight = placement.chunks[3].state = {};
  placement.set_nodes(std::vector<std::uint16_t>(layout_.chunks().size(), 2));
  EXPECT_EQ(placement[0].node(), 2);
  EXPECT_EQ(placement[0].update_unit(), 2);
  EXPECT_EQ(placement[1].node(), 2);
  EXPECT_EQ(placement[1].update_unit(), 0) << "its state passes through staging";
  for (const Index c : {2, 3}) {
    EXPECT_EQ(placement[c].node(), 0) << c;
    EXPECT_EQ(placement[c].update_unit(), 0) << c;
  }
  EXPECT_EQ(placement.nodes()[0], 2);
  EXPECT_EQ(placement.nodes()[3], 0);
}

TEST_F(Placed, ADeviceUpdatesWhatLivesThereAndWhatComesForIt) {
  ChunkPlacement lives, comes;
  lives.live_on_device();
  comes.weight.keep();
  comes.state = {TierKind::host, 1};
  comes.updated_on = TierKind::device;
  EXPECT_TRUE(lives.device_resident() && lives.updated_there() && lives.gradient_there());
  EXPECT_FALSE(lives.device_updated() || lives.gradient_comes());
  EXPECT_TRUE(comes.device_updated() && comes.updated_there() && comes.gradient_comes());
  EXPECT_FALSE(comes.device_resident());
  EXPECT_EQ(comes.node(), 1);
  EXPECT_EQ(comes.update_unit(), 0);
  comes.gradient = {TierKind::device};
  EXPECT_FALSE(comes.gradient_comes());
}

TEST_F(Placed, UpdatesCanBeEarlyWhereTheHostHasAll) {
  auto placement = test::placement_of(layout_);
  const auto c = static_cast<Index>(layout_.blocks()[1].first_chunk);
  EXPECT_TRUE(can_be_early(layout_, placement, c));
  EXPECT_FALSE(can_be_early(layout_, placement, 0)) << "a table's gradient is complete last";
  placement.chunks[c].updated_on = TierKind::device;
  EXPECT_FALSE(can_be_early(layout_, placement, c));
  placement.chunks[c] = {.weight = {TierKind::host}};
  EXPECT_FALSE(can_be_early(layout_, placement, c));
}

}  // namespace
}  // namespace spillway::plan
