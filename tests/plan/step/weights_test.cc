// Weights that do not stay come for their update and the pass behind it, and go back.
#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class Weights : public ::testing::Test {
 protected:
  Weights() : description_(test::describe({.layers = 2, .tied = false})), layout_(description_.layout()) {}

  [[nodiscard]] Placement all(bool stays) const { return test::placement_of(layout_, {stays, stays, stays, true}); }

  const Description description_;
  const state::Layout layout_;
  const Lookahead lookahead_;
  const Redo redo_;

  /// A step's passes and updates, with weights placed so.
  struct Updated : StepGraph {
    Updated(const Weights& of, const Placement& placed)
        : StepGraph({of.description_, of.layout_, placed, of.lookahead_, of.redo_}) {
      add_block_passes(*this);
      add_updates(*this);
    }
  };
};

TEST_F(Weights, ASliceIsReadForItsUpdateAndWrittenAfterIt) {
  const auto placement = all(false);
  Updated graph(*this, placement);
  const auto pass = graph.order.head_loss.front();
  add_weights(graph);
  const auto c = graph.chunk_of(graph.order.head, 0);
  const auto window = graph.host_weights[pass].front().buffer;
  ASSERT_EQ(graph.host_weights[pass].front().reads.size(), 1U);
  const auto read = graph.host_weights[pass].front().reads.front(), write = graph.write_weight[c];
  const auto update = graph.out.update_task[c];
  const auto out = std::move(graph).freeze();
  EXPECT_EQ(out.passes[pass].weights.front().here, window);
  EXPECT_GE(out.buffers[window].last, out.passes[pass].position);
  EXPECT_EQ(out.groups[c].weight.buffer, window);
  const auto waits = [&](Index task, Index on) {
    return std::ranges::any_of(out.tasks[task].needs, [&](const auto& it) { return it.task == on && !it.previous; });
  };
  EXPECT_TRUE(waits(update, read));
  EXPECT_TRUE(waits(write, update));
  EXPECT_TRUE(waits(out.passes[pass].task, update));
}

TEST_F(Weights, WhatStaysIsNotReadAgain) {
  const auto placement = all(true);
  Updated graph(*this, placement);
  add_weights(graph);
  for (const auto pass : graph.order.forward) {
    EXPECT_TRUE(graph.host_weights[pass].front().reads.empty());
    EXPECT_TRUE(graph.out.buffers[graph.host_weights[pass].front().buffer].whole);
  }
}

TEST_F(Weights, OfALayerComeOnceMoreToAWindowOfAnotherPass) {
  const auto placement = all(false);
  Updated graph(*this, placement);
  add_weights(graph);
  const auto pass = graph.order.backward.front();
  const auto chunks = chunks_of(layout_, graph.out.passes[pass]);
  const auto& weights = graph.host_weights[pass].front();
  ASSERT_EQ(weights.reads.size(), chunks.count);
  Bytes at = 0;
  for (Index i = 0; i < chunks.count; ++i) {
    const auto& read = graph.out.tasks[weights.reads[i]];
    EXPECT_EQ(read.when.phase, Phase::backward);
    EXPECT_EQ(read.to.offset, at);
    at += read.bytes;
    const auto written = graph.write_weight[chunks.first + i];
    EXPECT_TRUE(std::ranges::any_of(read.needs, [&](const auto& it) { return it.task == written && !it.previous; }));
  }
  EXPECT_EQ(graph.out.buffers[weights.buffer].bytes, at);
}

}  // namespace
}  // namespace spillway::plan::step
