// Who fills a buffer, who lets go of it, and what a transfer waits for.
#include "spillway/plan/step/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class Transfers : public ::testing::Test {
 protected:
  Transfers()
      : description_(test::describe({.layers = 3})),
        layout_(description_.layout()),
        placement_(test::placement_of(layout_)),
        graph_(description_, layout_, placement_, lookahead_, redo_) {
    add_block_passes(graph_);
  }

  const Description description_;
  const state::Layout layout_;
  const Placement placement_;
  const Lookahead lookahead_;
  const Redo redo_{.gradients = true, .period = 3};
  StepGraph graph_;
};

TEST_F(Transfers, AReadFillsItsBufferAndAWriteLetsGoOfIt) {
  const auto buffer = graph_.add_buffer(BufferClass::staging, 4096, 0, 1);
  const auto read = add_read(graph_, {ObjectKind::state, 0}, {buffer}, 4096, 5, Phase::update);
  const auto write = add_write(graph_, {ObjectKind::state, 0}, {buffer}, 4096, 6, Phase::update);
  const auto& out = graph_.out;
  EXPECT_EQ(out.buffers[buffer].first_tasks, std::vector<Index>{read});
  EXPECT_EQ(out.buffers[buffer].last_tasks, std::vector<Index>{write});
  EXPECT_EQ(out.tasks[read].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[write].memory().buffer, buffer);
  EXPECT_EQ(out.tasks[read].lane, Lane::read);
  EXPECT_EQ(out.tasks[write].lane, Lane::write);
}

TEST_F(Transfers, SnapshotsOfWhatStaysAreWrittenInTurn) {
  time_snapshots(graph_);
  std::vector<std::uint32_t> turns(redo_.period, 0);
  for (Index c = 0; c < graph_.chunks(); ++c) {
    EXPECT_EQ(graph_.out.snapshot_every[c], redo_.period);
    ++turns[graph_.out.snapshot_turn[c]];
  }
  EXPECT_LE(*std::ranges::max_element(turns) - *std::ranges::min_element(turns), 1U);
}

TEST_F(Transfers, AnUploadIsLetGoByThePassThatNeedsItAndADownloadFollowsIt) {
  const auto here = graph_.add_buffer(BufferClass::window, 4096, 0, 1);
  const auto there = graph_.add_buffer(BufferClass::window, 4096, 0, 1, TierKind::device);
  const auto pass = graph_.order.forward[1];
  const auto up = add_upload(graph_, {ObjectKind::weight, 0}, {here}, {there}, 4096, pass);
  const auto down = add_download(graph_, {ObjectKind::boundary, 1}, {there}, {here}, 4096, pass);
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
