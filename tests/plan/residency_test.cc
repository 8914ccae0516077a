// Where objects live, and what follows for the update of a chunk.
#include "spillway/plan/residency.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"
#include "tests/plan/residencies.h"

namespace spillway::plan {
namespace {

class Placed : public ::testing::Test {
 protected:
  const Description description_ = test::describe({.layers = 3});
  const state::Layout layout_ = description_.layout();
};

TEST_F(Placed, EverythingIsOnPathsAtFirst) {
  const Residency residency(layout_);
  EXPECT_EQ(residency.chunks.size(), layout_.chunks().size());
  EXPECT_EQ(residency.boundaries.size(), 4U);  // a norm is the last layer
  EXPECT_FALSE(residency.device);
  EXPECT_EQ(residency, test::residency_of(layout_, {false, false, false, false}));
  EXPECT_FALSE(residency[0].weight.in_memory());
}

TEST_F(Placed, WhatIsKeptIsOnTheHostUnlessItIsOnADevice) {
  TierId home, there{TierKind::device};
  home.keep();
  there.keep();
  EXPECT_EQ(home, (TierId{TierKind::host}));
  EXPECT_EQ(there, (TierId{TierKind::device}));
}

TEST_F(Placed, NodesAreOfWhatIsInHostMemory) {
  auto residency = test::residency_of(layout_, {.gradient = false});
  residency.chunks[1].state = {};
  residency.chunks[2].live_on_device();
  residency.chunks[3].weight = residency.chunks[3].state = {};
  residency.set_nodes(std::vector<std::uint16_t>(layout_.chunks().size(), 2));
  EXPECT_EQ(residency[0].node(), 2);
  EXPECT_EQ(residency[0].update_unit(), 2);
  EXPECT_EQ(residency[1].node(), 2);
  EXPECT_EQ(residency[1].update_unit(), 0) << "its state passes through staging";
  for (const Index c : {2, 3}) {
    EXPECT_EQ(residency[c].node(), 0) << c;
    EXPECT_EQ(residency[c].update_unit(), 0) << c;
  }
  EXPECT_EQ(residency.nodes()[0], 2);
  EXPECT_EQ(residency.nodes()[3], 0);
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
  auto residency = test::residency_of(layout_);
  const auto c = static_cast<Index>(layout_.blocks()[1].first_chunk);
  EXPECT_TRUE(can_be_early(layout_, residency, c));
  EXPECT_FALSE(can_be_early(layout_, residency, 0)) << "a table's gradient is complete last";
  residency.chunks[c].updated_on = TierKind::device;
  EXPECT_FALSE(can_be_early(layout_, residency, c));
  residency.chunks[c] = {.weight = {TierKind::host}};
  EXPECT_FALSE(can_be_early(layout_, residency, c));
}

}  // namespace
}  // namespace spillway::plan
