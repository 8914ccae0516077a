// Tasks wait for what is brought about by tasks that are made later.
#include "spillway/plan/step/graph.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class Graph : public ::testing::Test {
 protected:
  Graph()
      : description_(test::describe({})),
        layout_(description_.layout()),
        placement_(test::placement_of(layout_)),
        graph_({description_, layout_, placement_, lookahead_, redo_}) {}

  Index task() { return graph_.add(Task{}); }

  const Description description_;
  const state::Layout layout_;
  const Placement placement_;
  const Lookahead lookahead_;
  const Redo redo_;
  StepGraph graph_;
};

bool needs(const Schedule& schedule, Index task, Index on, bool previous) {
  for (const auto& it : schedule.tasks[task].needs) {
    if (it.task == on && it.previous == previous) return true;
  }
  return false;
}

TEST_F(Graph, AnEventMayBeWaitedForBeforeAnybodyBringsItAbout) {
  const auto event = graph_.find_event(1, ChunkEvent::gradient_ready);
  const auto waits = task(), waits_longer = task();
  graph_.need(waits, event);
  const auto brings = task(), brought_before = task();
  graph_.brings(brings, event);
  graph_.brings(brought_before, event, true);
  graph_.need(waits_longer, event, true);
  const auto out = std::move(graph_).freeze();
  EXPECT_TRUE(needs(out, waits, brings, false));
  EXPECT_TRUE(needs(out, waits, brought_before, true));
  EXPECT_TRUE(needs(out, waits_longer, brings, true));
  EXPECT_EQ(out.tasks[waits].needs.size(), 2U);
}

TEST_F(Graph, WhatNobodyBringsAboutHoldsUpNobody) {
  const auto waits = task();
  graph_.need(waits, graph_.find_event(0, ChunkEvent::auxiliary_there));
  graph_.need(waits, kNone);
  EXPECT_TRUE(std::move(graph_).freeze().tasks[waits].needs.empty());
}

TEST_F(Graph, EventsOfOneChunkAreApart) {
  graph_.brings(task(), graph_.find_event(0, ChunkEvent::snapshot_taken));
  const auto waits = task();
  graph_.need(waits, graph_.find_event(1, ChunkEvent::weight_read));
  EXPECT_TRUE(std::move(graph_).freeze().tasks[waits].needs.empty());
}

TEST_F(Graph, ABufferIsLetGoByWhoeverBringsTheEventAbout) {
  const auto buffer = graph_.add_buffer(BufferClass::grad, 4096, 1, 2);
  graph_.lets_go(graph_.find_event(0, ChunkEvent::gradient_used), buffer);
  const auto last = task();
  graph_.brings(last, graph_.find_event(0, ChunkEvent::gradient_used));
  EXPECT_EQ(std::move(graph_).freeze().buffers[buffer].last_tasks, std::vector<Index>{last});
}

TEST_F(Graph, PassesOnTheHostReadTheirWeightsThere) {
  const auto buffer = graph_.add_whole(BufferClass::weight, 4096);
  graph_.add_weights(0, {0, 1}, {buffer, {}});
  EXPECT_EQ(graph_.out.passes[0].weights.front().here, buffer);
  EXPECT_EQ(graph_.host_weights[0].front().buffer, buffer);
  EXPECT_TRUE(graph_.out.buffers[buffer].whole);
}

}  // namespace
}  // namespace spillway::plan::step
