// An operand that passes share has one place from the first to the last of them.
#include "spillway/plan/step/operands.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/plan/step/passes.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

TEST(Operands, HaveOnePlaceFromTheirFirstPassToTheirLast) {
  const auto description = test::describe({.layers = 3});
  const auto layout = description.layout();
  const auto placement = test::placement_of(layout);
  const Lookahead lookahead;
  const Redo redo;
  StepGraph graph({description, layout, placement, lookahead, redo});
  add_block_passes(graph);
  const std::vector passes{graph.order.forward[0], graph.order.forward[2]};
  const auto buffer = add_shared(graph, {Operand::head_sums, passes}, 8192);
  const auto& it = graph.out.buffers[buffer];
  EXPECT_EQ(it.bytes, 8192U);
  EXPECT_EQ(it.first, graph.order.position(passes.front()));
  EXPECT_EQ(it.last, graph.order.position(passes.back()));
  EXPECT_EQ(it.first_tasks, std::vector{graph.task_of(passes.front())});
  for (const auto pass : passes) EXPECT_EQ(graph.out.passes[pass][Operand::head_sums], buffer);
  EXPECT_EQ(graph.out.passes[graph.order.forward[1]][Operand::head_sums], kNone);
}

}  // namespace
}  // namespace spillway::plan::step
