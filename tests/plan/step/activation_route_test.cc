// An activation stays where its passes are, or goes to its home and comes back for its last pass.
#include "spillway/plan/step/activation_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class ActivationRoutes : public ::testing::Test {
 protected:
  ActivationRoutes()
      : description_(test::describe({.layers = 3})),
        layout_(description_.layout()),
        placement_(test::placement_of(layout_)),
        graph_({description_, layout_, placement_, lookahead_, redo_}),
        use_(boundaries_of(graph_.order)[1]) {
    add_block_passes(graph_);
  }

  Schedule follow(TierKind home) {
    follow_activation(graph_, use_, Residence{{home}}, 4096, BufferClass::activation);
    return std::move(graph_).freeze();
  }
  static std::vector<Index> transfers(const Schedule& schedule, Lane lane) {
    std::vector<Index> out;
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      if (schedule.tasks[t].moves(lane, ObjectKind::boundary)) out.push_back(t);
    }
    return out;
  }
  static bool follows(const Schedule& schedule, Index task, Index on) {
    return std::ranges::any_of(schedule.tasks[task].needs, [&](const Dependency& it) { return it.task == on; });
  }

  const Description description_;
  const state::Layout layout_;
  const Placement placement_;
  const Lookahead lookahead_;
  const Redo redo_;
  StepGraph graph_;
  const ActivationUse use_;
};

TEST_F(ActivationRoutes, AtHomeInMemoryAreOneBufferForAllPasses) {
  const auto out = follow(TierKind::host);
  const auto buffer = out.passes[use_.made][Operand::output];
  EXPECT_EQ(out.buffers.size(), 1U);
  EXPECT_EQ(out.passes[use_.read][Operand::input], buffer);
  EXPECT_EQ(out.passes[use_.needed][Operand::input], buffer);
  EXPECT_EQ(out.buffers[buffer].last, out.passes[use_.needed].position);
}

TEST_F(ActivationRoutes, OnAPathAreWrittenBehindTheirPassAndReadForBackward) {
  const auto out = follow(TierKind::storage);
  const auto writes = transfers(out, Lane::write), reads = transfers(out, Lane::read);
  ASSERT_EQ(writes.size(), 1U);
  ASSERT_EQ(reads.size(), 1U);
  EXPECT_TRUE(follows(out, writes.front(), out.passes[use_.made].task));
  EXPECT_TRUE(follows(out, reads.front(), writes.front()));
  EXPECT_TRUE(follows(out, out.passes[use_.needed].task, reads.front()));
  EXPECT_EQ(out.tasks[reads.front()].to.buffer, out.passes[use_.needed][Operand::input]);
  EXPECT_NE(out.passes[use_.needed][Operand::input], out.passes[use_.read][Operand::input]);
}

}  // namespace
}  // namespace spillway::plan::step
