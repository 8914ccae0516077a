// Where passes and updates lie in a step.
#include "spillway/plan/step/order.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"

namespace spillway::plan::step {
namespace {

using test::describe;

TEST(StepOrder, UpdatesComeBeforeThePassThatReadsThem) {
  for (const bool tied : {false, true}) {
    const auto description = describe({.layers = 3, .tied = tied});
    const auto layout = description.layout();
    const StepOrder order(description, layout, {}, false);
    for (Index i = 0; i < order.layers.size(); ++i) {
      const auto& block = layout.blocks()[order.layers[i]];
      for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
        EXPECT_LT(order.update(static_cast<Index>(c)), order.position(order.forward[i]));
      }
      EXPECT_GT(order.position(order.backward[i]), order.backward_start() - 1);
    }
    EXPECT_EQ(order.head, tied ? order.embedding_block : layout.blocks().size() - 1);
    EXPECT_EQ(order.head_loss.size(), order.head_gradient.size());
    EXPECT_EQ(order.passes()[order.head_loss.back()].slice, order.passes()[order.head_gradient.front()].slice);
    EXPECT_EQ(order.positions(), layout.chunks().size() + order.passes().size());
  }
}

TEST(StepOrder, GradientsAreMadeByTheirOwnPass) {
  for (const bool tied : {false, true}) {
    const auto description = describe({.layers = 2, .tied = tied});
    const auto layout = description.layout();
    const StepOrder order(description, layout, {}, false);
    for (Index c = 0; c < layout.chunks().size(); ++c) {
      if (!has_dense_grad(description, layout, c)) continue;
      const auto& pass = order.passes()[order.pass_of_gradient(c)];
      const auto chunks = chunks_of(layout, pass);
      EXPECT_TRUE(pass.kind == PassKind::backward || pass.kind == PassKind::head_gradient);
      EXPECT_TRUE(chunks.first <= c && c < chunks.end());
    }
  }
}

TEST(StepOrder, BackwardEndsWhereNothingBelowIsTrainable) {
  const auto description =
      describe({.layers = 4, .tied = false, .chunk_elements = 1 << 20, .frozen = "embed|layers.0"});
  const auto layout = description.layout();
  const StepOrder order(description, layout, {}, false);
  EXPECT_EQ(order.lowest, 1U);
  EXPECT_EQ(order.backward[0], kNone);
  EXPECT_EQ(order.embedding_backward, kNone);
  EXPECT_EQ(order.last_differentiated(), order.backward[1]);
  EXPECT_EQ(order.first_differentiated(), order.head_gradient.front());
}

TEST(StepOrder, TransfersBeginAndEndWithinTheStep) {
  const auto description = describe({.layers = 3});
  const auto layout = description.layout();
  const Lookahead remote{.state_read = 2, .write = 1000, .device = 1000};
  const StepOrder order(description, layout, remote, true);
  const auto chunks = static_cast<Index>(layout.chunks().size());
  for (Index c = 0; c < chunks; ++c) {
    EXPECT_EQ(order.before_update(c, 1000), order.update(0));
    EXPECT_LE(order.after_update(c), c < remote.state_read ? order.backward_start() - 1 : order.positions() - 1);
    EXPECT_EQ(order.device_before_update(c), order.update(0));
    EXPECT_EQ(order.device_after_update(c), order.update(chunks - 1));
  }
  for (Index p = 0; p < order.passes().size(); ++p) {
    EXPECT_LE(order.before_pass(p, 1000), order.position(p));
    EXPECT_EQ(order.device_before(p), order.position(0));
    EXPECT_EQ(order.device_after(p), order.position(static_cast<Index>(order.passes().size() - 1)));
    const bool table =
        order.passes()[p].kind == PassKind::embedding || order.passes()[p].kind == PassKind::embedding_backward;
    EXPECT_EQ(order.passes()[p].on_host, table);
  }
}

}  // namespace
}  // namespace spillway::plan::step
