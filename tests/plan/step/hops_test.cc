// Hops between tiers: which there are, who fills a buffer and lets go of it, and what a transfer waits for.
#include "spillway/plan/step/hops.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class Hops : public ::testing::Test {
 protected:
  Hops()
      : description_(test::describe({.layers = 3})),
        layout_(description_.layout()),
        placement_(test::placement_of(layout_)),
        graph_({description_, layout_, placement_, lookahead_, redo_}) {
    add_block_passes(graph_);
  }

  const Description description_;
  const state::Layout layout_;
  const Placement placement_;
  const Lookahead lookahead_;
  const Redo redo_{.gradients = true, .period = 3};
  StepGraph graph_;
};

TEST_F(Hops, AReadFillsItsBufferAndAWriteLetsGoOfIt) {
  const auto buffer = graph_.add_buffer(BufferClass::staging, 4096, 0, 1);
  const auto read = add_hop(graph_, Lane::read, Phase::update, {{ObjectKind::state, 0}, {}, {buffer}, 4096}, 5);
  const auto write = add_hop(graph_, Lane::write, Phase::update, {{ObjectKind::state, 0}, {buffer}, {}, 4096}, 6);
  const auto& out = graph_.out;
  EXPECT_EQ(out.buffers[buffer].first_tasks, std::vector<Index>{read});
  EXPECT_EQ(out.buffers[buffer].last_tasks, std::vector<Index>{write});
  EXPECT_EQ(out.tasks[read].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[write].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[read].lane, Lane::read);
  EXPECT_EQ(out.tasks[write].lane, Lane::write);
}

TEST_F(Hops, AWayBetweenAPathAndADeviceGoesByTheHost) {
  const auto lanes = [](TierKind from, TierKind to) {
    std::vector<Lane> out;
    for (const auto& hop : hops_between(from, to)) out.push_back(hop.lane);
    return out;
  };
  EXPECT_EQ(lanes(TierKind::storage, TierKind::device), (std::vector<Lane>{Lane::read, Lane::to_device}));
  EXPECT_EQ(lanes(TierKind::device, TierKind::storage), (std::vector<Lane>{Lane::from_device, Lane::write}));
  EXPECT_EQ(lanes(TierKind::host, TierKind::storage), std::vector<Lane>{Lane::write});
  EXPECT_TRUE(lanes(TierKind::host, TierKind::host).empty());
  for (const auto& hop : kHops) EXPECT_EQ(back_of(back_of(hop)).lane, hop.lane);
}

TEST_F(Hops, NeighboursGoTogetherOverALinkAndOneByOneToAPath) {
  const auto chunks = [this](const Hop& hop, const Separate& separate = {}) {
    std::vector<Index> out;
    for (const auto& it : parts_of(
             graph_, hop, {0, 4}, [](Index) { return Bytes{64}; }, separate)) {
      EXPECT_EQ(it.bytes, 64 * it.chunks.count);
      EXPECT_EQ(it.at, 64 * it.chunks.first);
      out.push_back(it.chunks.count);
    }
    return out;
  };
  for (const auto& hop : kHops) {
    EXPECT_EQ(hop.coalesces, is_link(hop.lane));
    EXPECT_EQ(chunks(hop), hop.coalesces ? std::vector<Index>{4} : std::vector<Index>(4, 1));
  }
  const auto up = hops_between(TierKind::host, TierKind::device).front();
  EXPECT_EQ(chunks(up, [](Index c) { return c == 3; }), (std::vector<Index>{3, 1}));
}

TEST_F(Hops, WhatStaysIsNotLetGo) {
  const auto home = graph_.add_whole(BufferClass::weight, 4096);
  const auto there = graph_.add_buffer(BufferClass::window, 4096, 0, 1, TierKind::device);
  const auto up = add_hop(graph_, Lane::to_device, Phase::forward, {{ObjectKind::weight, 0}, {home}, {there}, 4096}, 1);
  EXPECT_TRUE(graph_.out.buffers[home].last_tasks.empty());
  EXPECT_EQ(graph_.out.buffers[there].first_tasks, std::vector<Index>{up});
}

TEST_F(Hops, AnUploadIsLetGoByThePassThatNeedsItAndADownloadFollowsIt) {
  const auto here = graph_.add_buffer(BufferClass::window, 4096, 0, 1);
  const auto there = graph_.add_buffer(BufferClass::window, 4096, 0, 1, TierKind::device);
  const auto pass = graph_.order.forward[1];
  const auto up = bring_to_pass(graph_, Lane::to_device, {{ObjectKind::weight, 0}, {here}, {there}, 4096}, pass);
  const auto down = take_from_pass(graph_, Lane::from_device, {{ObjectKind::boundary, 1}, {there}, {here}, 4096}, pass);
  const auto out = std::move(graph_).freeze();
  const auto waits = [&](Index task, Index on) {
    return std::ranges::any_of(out.tasks[task].needs, [&](const Dependency& it) { return it.task == on; });
  };
  EXPECT_TRUE(waits(out.passes[pass].task, up));
  EXPECT_TRUE(waits(down, out.passes[pass].task));
  EXPECT_EQ(out.tasks[up].on_device().buffer, there);
  EXPECT_EQ(out.tasks[down].on_host().buffer, here);
  EXPECT_EQ(out.buffers[there].first_tasks, std::vector<Index>{up});
  EXPECT_EQ(out.buffers[here].first_tasks, std::vector<Index>{down});
}

}  // namespace
}  // namespace spillway::plan::step
