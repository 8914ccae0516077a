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
  const auto read = add_hop(graph_, Phase::update, {{ObjectKind::state, 0}, {}, {buffer}, 4096}, 5);
  const auto write = add_hop(graph_, Phase::update, {{ObjectKind::state, 0}, {buffer}, {}, 4096}, 6);
  const auto& out = graph_.out;
  EXPECT_EQ(out.buffers[buffer].first_tasks, std::vector<Index>{read});
  EXPECT_EQ(out.buffers[buffer].last_tasks, std::vector<Index>{write});
  EXPECT_EQ(out.tasks[read].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[write].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[read].lane, Lane::read);
  EXPECT_EQ(out.tasks[write].lane, Lane::write);
}

TEST_F(Hops, AWayBetweenTiersOtherThanTheHostGoesByIt) {
  const auto lanes = [](TierKind from, TierKind to) {
    std::vector<Lane> out;
    for (const auto& hop : hops_between(from, to)) out.push_back(hop.lane);
    return out;
  };
  EXPECT_EQ(lanes(TierKind::storage, TierKind::device), (std::vector<Lane>{Lane::read, Lane::to_device}));
  EXPECT_EQ(lanes(TierKind::device, TierKind::storage), (std::vector<Lane>{Lane::from_device, Lane::write}));
  EXPECT_EQ(lanes(TierKind::host, TierKind::storage), std::vector<Lane>{Lane::write});
  EXPECT_EQ(lanes(TierKind::peer, TierKind::device), (std::vector<Lane>{Lane::network, Lane::to_device}));
  EXPECT_EQ(lanes(TierKind::device, TierKind::peer), (std::vector<Lane>{Lane::from_device, Lane::network}));
  EXPECT_TRUE(lanes(TierKind::host, TierKind::host).empty());
  for (const auto& hop : kHops) EXPECT_EQ(back_of(back_of(hop)).lane, hop.lane);
}

TEST_F(Hops, AMoveTakesTheLaneOfItsEnds) {
  const Place path, host{graph_.add_buffer(BufferClass::staging, 64, 0, 1)},
      device{graph_.add_buffer(BufferClass::staging, 64, 0, 1, TierKind::device)};
  const auto lane = [&](Place from, Place to) {
    return graph_.out.tasks[add_transfer(graph_, Phase::update, {{ObjectKind::state, 0}, from, to, 64}, 1)].lane;
  };
  EXPECT_EQ(lane(path, host), Lane::read);
  EXPECT_EQ(lane(host, path), Lane::write);
  EXPECT_EQ(lane(host, device), Lane::to_device);
  EXPECT_EQ(lane(device, host), Lane::from_device);
  EXPECT_EQ(lane(device, path), Lane::write);  // from where a copy will have staged it
}

TEST_F(Hops, NeighboursGoTogetherButToAPath) {
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
    EXPECT_EQ(hop.coalesces, !is_path(hop.lane));
    EXPECT_EQ(chunks(hop), hop.coalesces ? std::vector<Index>{4} : std::vector<Index>(4, 1));
  }
  const auto up = hops_between(TierKind::host, TierKind::device).front();
  EXPECT_EQ(chunks(up, [](Index c) { return c == 3; }), (std::vector<Index>{3, 1}));
}

TEST_F(Hops, WhatStaysIsNotLetGo) {
  const auto home = graph_.add_whole(BufferClass::weight, 4096);
  const auto there = graph_.add_buffer(BufferClass::window, 4096, 0, 1, TierKind::device);
  const auto up = add_hop(graph_, Phase::forward, {{ObjectKind::weight, 0}, {home}, {there}, 4096}, 1);
  EXPECT_TRUE(graph_.out.buffers[home].last_tasks.empty());
  EXPECT_EQ(graph_.out.buffers[there].first_tasks, std::vector<Index>{up});
}

TEST_F(Hops, AnUploadIsLetGoByThePassThatNeedsItAndADownloadFollowsIt) {
  const auto here = graph_.add_buffer(BufferClass::window, 4096, 0, 1);
  const auto there = graph_.add_buffer(BufferClass::window, 4096, 0, 1, TierKind::device);
  const auto pass = graph_.order.forward[1];
  const auto up = bring_to_pass(graph_, {{ObjectKind::weight, 0}, {here}, {there}, 4096}, pass);
  const auto down = take_from_pass(graph_, {{ObjectKind::boundary, 1}, {there}, {here}, 4096}, pass);
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

/// A graph of one of several processes.
struct Shared {
  Shared(std::size_t local, const Lookahead& ahead) : description(describe(local)), lookahead(ahead) {
    add_block_passes(graph);
  }

  static Description describe(std::size_t local) {
    auto out = test::describe({.layers = 3, .virtual_ranks = 4});
    out.world = {.size = 4, .rank = 1, .local = local};
    return out;
  }

  const Description description;
  const state::Layout layout = description.layout();
  const Placement placement = test::placement_of(layout);
  const Lookahead lookahead;
  const Redo redo = {};
  StepGraph graph{{description, layout, placement, lookahead, redo}};
};

TEST(HopsBetweenProcesses, HaveALegBetweenMachinesAndOneInsideThem) {
  const auto legs_of = [](const Hop& hop, std::size_t local) {
    Shared it(local, {});
    const Task task{.what = {ObjectKind::pass, 1}, .deadline = 7, .when = {.phase = Phase::backward}};
    const auto legs = add_legs(it.graph, hop, task, [](Op leg, Moved& moved) {
      moved = {leg == Op::gather ? Bytes{100} : Bytes{10}, 30};
    });
    const auto& out = it.graph.out;
    std::vector<Op> ops;
    for (const auto t : out.network) {
      EXPECT_EQ(out.tasks[t].lane, hop.lane);
      EXPECT_EQ(out.tasks[t].what, task.what);
      EXPECT_EQ(out.tasks[t].deadline, 7U);
      EXPECT_EQ(out.tasks[t].bytes, out.tasks[t].op == Op::gather ? 100U : 30U);
      ops.push_back(out.tasks[t].op);
    }
    EXPECT_EQ(out.network.front(), legs.first);
    EXPECT_EQ(out.network.back(), legs.last);
    EXPECT_TRUE(out.tasks[legs.first].needs.empty());
    EXPECT_TRUE(legs.first == legs.last || out.tasks[legs.last].needs.front().task == legs.first);
    EXPECT_EQ(out.network_received, 30 * ops.size());
    EXPECT_EQ(out.received_between, local < 4 ? 30U : 0U);
    return ops;
  };
  const auto& in = hop_between(TierKind::peer, TierKind::host);
  const auto& out = hop_between(TierKind::host, TierKind::peer);
  EXPECT_EQ(legs_of(in, 2), (std::vector<Op>{Op::gather, Op::local_gather}));
  EXPECT_EQ(legs_of(in, 1), std::vector<Op>{Op::gather});
  EXPECT_EQ(legs_of(in, 4), std::vector<Op>{Op::local_gather});
  EXPECT_EQ(legs_of(out, 2), (std::vector<Op>{Op::local_scatter, Op::scatter}));
  EXPECT_EQ(legs_of(out, 1), std::vector<Op>{Op::scatter});
  EXPECT_EQ(legs_of(out, 4), std::vector<Op>{Op::local_scatter});
}

TEST(HopsBetweenProcesses, ReachOnePassAtLeast) {
  const auto& in = hop_between(TierKind::peer, TierKind::host);
  const auto& out = hop_between(TierKind::host, TierKind::peer);
  for (const std::uint32_t ahead : {0U, 1U, 2U}) {
    const Shared it(1, {.backward = ahead, .grad_write = ahead, .head = ahead});
    const auto& order = it.graph.order;
    const auto pass = order.backward[1];  // of three layers, so that a pass is there on both sides
    const auto at = order.position(pass);
    EXPECT_EQ(around_pass(it.graph, in, pass), at - 1);
    EXPECT_EQ(around_pass(it.graph, out, pass), std::min(at + std::max(1U, ahead), order.positions() - 1));
    EXPECT_EQ(window_begin(it.graph, pass), at - std::max(1U, ahead));
  }
}

}  // namespace
}  // namespace spillway::plan::step
