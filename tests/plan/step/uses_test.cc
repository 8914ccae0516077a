// Uses of the objects of a step: every pass that reads or makes one is there, in the order of the step.
#include "spillway/plan/step/uses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

struct Step {
  explicit Step(const test::Shape& shape)
      : description(test::describe(shape)), layout(description.layout()), order(description, layout, ahead, false) {}

  Description description;
  state::Layout layout;
  Lookahead ahead;
  StepOrder order;
};

TEST(Uses, OfWeightsAreThePassesThatReadThemInOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    auto shape = test::random_shape(random, round);
    if (round % 2 == 1) test::freeze_some(shape, random);
    const Step step(shape);
    std::vector<int> uses(step.order.passes().size(), 0);
    for (const auto& use : weights_of(step.order, step.layout)) {
      EXPECT_TRUE(std::ranges::is_sorted(use.passes));
      for (const auto pass : use.passes) {
        ++uses[pass];
        const auto chunks = chunks_of(step.layout, step.order.passes()[pass]);
        EXPECT_EQ(use.objects.front().first, chunks.first);
        EXPECT_EQ(use.objects.back().end(), chunks.end());
      }
    }
    for (std::size_t p = 0; p < uses.size(); ++p) {
      const bool reads = static_cast<Index>(p) != step.order.embedding_backward;
      EXPECT_EQ(uses[p], reads ? 1 : 0) << "pass " << p << " of round " << round;
    }
  }
}

TEST(Uses, OfBoundariesGoFromEachLayerToTheNextAndBack) {
  const Step step({.layers = 3, .tied = false});
  const auto uses = boundaries_of(step.order);
  ASSERT_EQ(uses.size(), step.order.layers.size());
  EXPECT_EQ(uses.front().as_made, Operand::gathered_rows);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    EXPECT_EQ(uses[i].read, step.order.forward[i]);
    EXPECT_EQ(uses[i].needed, step.order.backward[i]);
    EXPECT_LT(uses[i].made, uses[i].read);
  }
  EXPECT_EQ(last_boundary_of(step.order).needed, step.order.head_gradient.back());
}

TEST(Uses, OfGradientsNameThePassThatMakesThemOnce) {
  const Step step({.layers = 3, .tied = false, .frozen = "up"});
  std::vector<int> made(step.layout.chunks().size(), 0);
  for (const auto& use : gradients_of(step.order, step.layout)) {
    for (auto c = use.chunks.first; c < use.chunks.end(); ++c) ++made[c];
    EXPECT_TRUE(traits(step.order.passes()[use.made].kind).phase == Phase::backward);
  }
  for (Index c = 0; c < made.size(); ++c) {
    const auto& chunk = step.layout.chunks()[c];
    const bool dense = is_trainable(chunk.training) && has_dense_grad(step.description, step.layout, c);
    EXPECT_EQ(made[c], dense ? 1 : 0) << "chunk " << c;
  }
}

/// The uses of the update of a chunk by kind: weight, state, gradient.
std::vector<Access> accesses_of(const Step& step, Index chunk) {
  std::vector<Access> out;
  for (const auto& use : uses_of_update(step.description, step.layout, chunk)) out.push_back(use.access);
  return out;
}

TEST(Uses, OfAnUpdateChangeItsWeightAndItsStateAndTakeItsGradient) {
  const Step apart({.layers = 2, .tied = false}), tied({.layers = 2, .tied = true});
  const auto layer = static_cast<Index>(apart.layout.blocks()[apart.order.layers[0]].first_chunk);
  const auto row = static_cast<Index>(apart.layout.blocks()[apart.order.embedding_block].first_chunk);
  EXPECT_EQ(accesses_of(apart, layer), (std::vector{Access::change, Access::change, Access::read}));
  EXPECT_EQ(accesses_of(apart, row).back(), Access::make) << "rows alone are its gradient";
  EXPECT_EQ(accesses_of(tied, row).back(), Access::add) << "rows join the gradient of the head";
}

TEST(Uses, OfRowSumsAreThePassesOverATiedTable) {
  const Step apart({.layers = 2, .tied = false}), tied({.layers = 2, .tied = true}), frozen({.frozen = "embed"});
  EXPECT_EQ(row_sums_of(apart.order).passes, std::vector{apart.order.embedding_backward});
  auto passes = tied.order.head_gradient;
  passes.push_back(tied.order.embedding_backward);
  EXPECT_EQ(row_sums_of(tied.order).passes, passes);
  EXPECT_TRUE(std::ranges::is_sorted(passes));
  EXPECT_TRUE(row_sums_of(frozen.order).passes.empty());
}

TEST(Uses, OfWhatALayerSpillsAreItsTwoPasses) {
  const Step step({.layers = 2});
  SavedPlacement saved{.blocks = std::vector<Saved>(step.layout.blocks().size(), Saved::recompute), .spilled = 4096};
  EXPECT_TRUE(saved_of(step.order, saved).empty());
  saved.blocks[step.order.layers[1]] = Saved::spill;
  const auto uses = saved_of(step.order, saved);
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses.front().made, step.order.forward[1]);
  EXPECT_EQ(uses.front().needed, step.order.backward[1]);
}

}  // namespace
}  // namespace spillway::plan::step
